"""The mechanisms' own files. Each annotated line in them is checked as it runs."""

from beartype import BeartypeConf
from beartype.claw import beartype_this_package

# The tower: a whole number is a mask value too.
beartype_this_package(conf=BeartypeConf(is_pep484_tower=True))

"""The mechanisms, one file each. beartype and jaxtyping check each annotated line as it runs."""

from beartype import BeartypeConf
from beartype.claw import beartype_this_package

# with the numeric tower, an int is a mask value too
beartype_this_package(conf=BeartypeConf(is_pep484_tower=True))

"""The orchestrations: from options to a trace, a report or annotated source."""

"""The probes of a check, one a file: each looks at a subject, and says what is wrong, measured, proved or unknown."""

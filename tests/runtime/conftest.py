from tests.fuzz.conftest import harness  # noqa: F401

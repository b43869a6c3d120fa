"""The floor for commands that need no torch: an application of typer and rich without commands."""

import typer

app = typer.Typer()


@app.callback(invoke_without_command=True)
def main() -> None:
    """Do nothing."""


if __name__ == "__main__":
    app()

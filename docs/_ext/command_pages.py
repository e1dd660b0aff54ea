"""The page of the command line, from the commands themselves: every command, every option, what it does."""

import re
from pathlib import Path
from typing import Any

_INTRO = """# The command line

Each command says the same with `--help`. A command that fails says why in one sentence and ends with exit code 1;
`audit` also does when it catches something.

"""
_MARKUP = re.compile(r"\[/?(?:bold|italic|dim)\]")


def page() -> str:
    """Markdown of all commands that the installed ``decrescendo`` has.

    >>> "## `decrescendo plan`" in page()
    True
    """
    import typer.main

    from decrescendo.cli import app

    group: Any = typer.main.get_command(app)
    return _INTRO + "\n".join(_section(name, command) for name, command in group.commands.items())


def _section(name: str, command: Any) -> str:
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    table = "| option | takes | what it does |\n| --- | --- | --- |\n" + "\n".join(rows) if rows else ""
    return f"## `decrescendo {name}`\n\n{_prose(command.help or '')}\n\n{table}\n"


def _prose(text: str) -> str:
    paragraphs = [
        " ".join(part.split()) for part in _MARKUP.sub("", text).replace("\b", "").replace("\f", "").split("\n\n")
    ]
    shown = []
    for part in paragraphs:
        _, example, command = part.partition("Example: ")
        shown.append(f"```sh\n{command}\n```" if example and part.startswith("Example: ") else part)
    return "\n\n".join(shown)


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    choices = getattr(parameter.type, "choices", None)
    takes = ", ".join(str(getattr(choice, "value", choice)) for choice in choices) if choices else parameter.type.name
    if getattr(parameter, "is_flag", False):
        takes = ""
    help_text = " ".join((getattr(parameter, "help", "") or "").split())
    required = " Required." if parameter.required else ""
    return f"| {names} | {_cell(parameter.metavar or takes)} | {_cell(help_text)}{required} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _generate(app: Any) -> None:
    from reference_pages import _write

    _write(Path(app.srcdir) / "reference/command-line.md", page())


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", _generate)
    return {"parallel_read_safe": True}

"""Completion in bash, which breaks words at colons: `app:app` is three of them to it.

So the line is taken as it was typed, and broken here as the shell does when it runs a command.
"""

import os

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

SCRIPT = """\
%(complete_func)s() {
    local IFS=$'\\n' type value completion
    COMPREPLY=()
    for completion in $(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class BashLine(BashComplete):
    """Completes the line that was typed, up to the cursor."""

    source_template = SCRIPT

    def get_completion_args(self) -> tuple[list[str], str]:
        """Break the line into the words before the one that is being typed, and that one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        typed = words.pop() if words and not line[-1].isspace() else ""
        return words, typed

    def format_completion(self, item: CompletionItem) -> str:
        """Leave out the part before a colon: bash puts an answer in place of the part after it."""
        _, typed = self.get_completion_args()
        value = typed.partition("=")[2] if typed.startswith("-") else typed
        breaks = ":" in os.environ.get("COMP_WORDBREAKS", "")
        there = value[: value.rfind(":") + 1] if breaks else ""
        return f"{item.type},{str(item.value).removeprefix(there)}"


def register() -> None:
    """Let click complete by it."""
    add_completion_class(BashLine)

"""Draw the README's picture from a real run: `python tools/picture.py`.

A worker is killed, another one takes its job over, the history says so, and the database refuses an
UPDATE that is no move. Needs the sqlite3 shell. Only the names of host and user are replaced.
"""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parent.parent / "docs/pictures/run.svg"
PROGRAM = """
import time
import milepost as mp

app = mp.App()

@app.job
def render(ctx: mp.Context, film: str) -> str:
    for scene in range(1, 6):
        ctx.progress(scene / 5, f"scene {scene} of 5")
        time.sleep(1)
    return f"{film}.mp4, in attempt {ctx.attempt}"
"""
SETTINGS = "MILEPOST_LEASE=2s MILEPOST_HEARTBEAT=0.5s"
CHEAT = "UPDATE job SET state = 'RUNNING'"
TOLD = "A worker is killed; another one takes its job over, and the job's history shows it."
COLUMNS, CHARACTER, LINE, PADDING, TITLE = 100, 8.0, 19, 18, 34
STYLE = """
    .frame { fill: #161b22; stroke: #57606a }
    text { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #c9d1d9 }
    .prompt { fill: #3fb950 } .command { fill: #fff; font-weight: 600 } .bold { font-weight: 600 }
    .refused { fill: #ff7b72 } .good { fill: #56d364 } .title { fill: #8b949e }
"""


def _stand_in(found: re.Match[str]) -> str:
    """Replace a name by one of the same length."""
    return (f"pc{found[1]}" if found[1] else "cli:ada").ljust(len(found[0]))


class Session:
    """A terminal in a folder of its own, and the lines that it showed."""

    def __init__(self, folder: Path) -> None:
        settings = dict(setting.split("=") for setting in SETTINGS.split())
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.folder = folder
        self.environment = {"PATH": path, "COLUMNS": str(COLUMNS), **settings}
        self.lines: list[tuple[str, str]] = []

    def says(self, command: str) -> str:
        """Run a command whose standard output is a terminal; return what it printed."""
        reader, writer = pty.openpty()
        done = subprocess.run(
            shlex.split(command),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
        os.close(writer)
        printed = b"" if done.returncode else os.read(reader, 65536)
        os.close(reader)
        text = (printed or done.stderr).decode().replace("\r\n", "\n")
        names = rf"\b(?:{re.escape(os.uname().nodename)}(-\w+-\w+)|cli:\S+)"
        return re.sub(names, _stand_in, text)

    def type(self, command: str) -> None:
        """Show a command."""
        self.lines.append(("command", command))

    def show(self, command: str, *, told: str = "", style: str = "") -> str:
        """Show a command and its output."""
        self.type(told or command)
        printed = self.says(command).rstrip("\n")
        self.lines += [(style, line.rstrip()) for line in printed.split("\n")]
        return printed

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker in the background, and show that."""
        self.type("milepost worker films:app &")
        quiet = subprocess.DEVNULL
        command = ["milepost", "worker", "films:app"]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=quiet, stderr=quiet
        )


def story(session: Session) -> None:
    """Kill the worker of a job, and look at what became of the job."""
    session.type(f"export {SETTINGS}   # notice a dead worker after 2 s, not 30")
    session.type("id=$(milepost submit films:app render holiday)")
    job = session.says("milepost submit films:app render holiday").strip()
    first = session.worker()
    while "scene 2" not in session.says(f"milepost explain {job}"):
        time.sleep(0.1)
    session.show(f"milepost explain {job}", told="milepost explain $id")
    first.send_signal(signal.SIGKILL)
    first.wait()
    session.type("kill -9 %1")
    second = session.worker()
    session.show(f"milepost jobs wait {job}", told="milepost jobs wait $id")
    session.show(f"milepost jobs history {job}", told="milepost jobs history $id")
    session.show(f'sqlite3 milepost.db "{CHEAT}"', style="refused")
    session.show("milepost verify", style="good")
    second.terminate()
    second.wait()


def drawn(style: str, line: str, height: int) -> str:
    """Draw one line; of the terminal's own colours only bold is known."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)
    classes, text = style or ("bold" if "\x1b[1m" in line else ""), escape(plain)
    if style == "command":
        command, mark, remark = text.partition("   #")
        text = f'<tspan class="prompt">$ </tspan><tspan class="command">{command}</tspan>'
        classes, text, plain = (
            "",
            f'{text}<tspan class="title">{mark}{remark}</tspan>',
            f"$ {plain}",
        )
    return (
        f'<text x="{PADDING}" y="{height}" class="{classes}" xml:space="preserve" '
        f'textLength="{len(plain) * CHARACTER:.0f}" lengthAdjust="spacingAndGlyphs">{text}</text>'
    )


def picture(lines: list[tuple[str, str]]) -> str:
    """Draw a terminal, dark on a light page and framed on a dark one."""
    shown = [(style, line) for style, line in lines if line]
    width, height = round(COLUMNS * CHARACTER + 2 * PADDING), TITLE + len(shown) * LINE + PADDING
    frame = f'x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"'
    lights = enumerate(("#ff5f57", "#febc2e", "#28c840"))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f'<title>{TOLD}</title>\n<style>{STYLE}</style>\n<rect class="frame" {frame}/>',
        *(f'<circle cx="{PADDING + 4 + 18 * n}" cy="18" r="5.5" fill="{c}"/>' for n, c in lights),
        f'<text class="title" x="{width // 2}" y="22" text-anchor="middle">milepost</text>',
        *(drawn(*line, TITLE + (n + 1) * LINE - 6) for n, line in enumerate(shown)),
        "</svg>\n",
    ]
    return "\n".join(parts)


def main() -> None:
    """Play the story in a folder of its own, and draw it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "films.py").write_text(PROGRAM)
        session = Session(Path(folder))
        story(session)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(session.lines))


if __name__ == "__main__":
    main()

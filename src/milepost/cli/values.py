"""Parsing of words typed at a prompt: the app that a command is about, and values."""

import importlib
import json
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from milepost.cli.groups import did_you_mean
from milepost.errors import Invalid, MilepostError

if TYPE_CHECKING:
    from milepost.app import App
    from milepost.declare import Definition

T = TypeVar("T")
OPENS = ("{", "[", '"')
_TEXT_WANTED = re.compile(r"Expected `str\b")


def load_app(path: str) -> "App":
    """Import MODULE:APP, FILE.py or FILE.py:APP, or name the mistake."""
    place, _, name = path.partition(":")
    is_file = place.endswith(".py")
    if not place or not (name or is_file):
        raise Invalid(f"{path!r}: expected MODULE:APP, as in app:app, or a file, as in app.py")
    module = _from_file(Path(place)) if is_file else _from_name(place)
    return _chosen(module, name or None)


def kinds(app: "App") -> dict[str, "Definition"]:
    """Return the kinds of job that can be submitted, newest versions only; no steps of batches."""
    names = {d.name for d in app.registry if d.feed is None and d.outlet is None}
    return {name: app.registry.newest(name) for name in sorted(names)}


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Invalid(f"there is no file {path}.{_like(path.name, path.absolute().parent)}")
    if not path.stem.isidentifier():
        raise Invalid(f"{path} cannot be imported: rename it to letters, digits and underscores")
    sys.path.insert(0, str(path.absolute().parent))
    module = _imported(path.stem)
    if module.__file__ is None or not path.samefile(module.__file__):
        raise Invalid(f"{path} has the name of another module, {module.__file__}; rename it")
    return module


def _from_name(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return _imported(name)
    except ModuleNotFoundError as error:
        raise Invalid(
            f"there is no module {name!r} in {Path.cwd()} or among the installed ones."
            f"{_like(name, Path.cwd())}"
        ) from error


def _like(name: str, folder: Path) -> str:
    stem, ending = name.removesuffix(".py"), ".py" if name.endswith(".py") else ""
    found = {path.stem: path.name for path in sorted(folder.glob("*.py"))}
    guess = did_you_mean(stem, found, ending=ending)
    return guess or f" Here are: {', '.join(found.values()) or 'no .py files'}."


def _imported(name: str) -> ModuleType:
    """Import a module; an error of its own lines is raised with the line."""
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except MilepostError:
        raise
    except SystemExit as error:
        raise Invalid(f"{name} cannot be imported: it ends the program ({error!r})") from error
    except Exception as error:
        line = _line(error)
        if line is None and isinstance(error, ModuleNotFoundError):
            raise  # it is this module that is not there
        told = f"{type(error).__name__}: {error}{line or ''}"
        raise Invalid(f"{name} cannot be imported: {told}") from error


def _line(error: BaseException) -> str | None:
    """Name the last line outside the import machinery, if the import got that far."""
    ours = (__file__, importlib.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    told = [f for f in frames if f.filename not in ours and not f.filename.startswith("<frozen")]
    return f" ({told[-1].filename}, line {told[-1].lineno})" if told else None


def _chosen(module: ModuleType, name: str | None) -> "App":
    from milepost.app import App

    found = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name in found:
        return found[name]
    if name is not None:
        hint = f"; it has {', '.join(sorted(found))}" if found else ""
        raise Invalid(f"{module.__name__} has no App called {name!r}{hint}")
    if not found:
        raise Invalid(
            f"{module.__file__} holds no App; it needs a line like `app = milepost.App()`"
        )
    if len(set(map(id, found.values()))) > 1 and "app" not in found:
        raise Invalid(f"{module.__file__} holds several: add one of :{', :'.join(sorted(found))}")
    return found.get("app") or next(iter(found.values()))


def pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    """Take NAME=VALUE apart, or name the expected form."""
    found = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise Invalid(f"{option} {pair!r}: expected NAME=VALUE")
        found[name] = text
    return found


def value(text: str) -> Any:
    """Read JSON where it parses; anything else is a string."""
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return text


def document(text: str) -> Any:
    """Read a JSON document; a plain word may stand for itself, a broken document may not."""
    if broken := _broken(text):
        raise Invalid(f"the parameters {text!r} are no JSON: {broken}")
    return value(text)


def _broken(text: str) -> str | None:
    """Say where something that was meant as JSON does not parse."""
    if not text.lstrip().startswith(OPENS):
        return None
    try:
        json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")  # whatever Python says


def find_declared(kind: str, word: str, known: Mapping[str, T]) -> T:
    """Find a declaration by its name, or suggest names like it."""
    if word in known:
        return known[word]
    guess = did_you_mean(word, known) or f" Declared: {', '.join(known) or 'none'}."
    raise Invalid(f"no {kind} is called {word!r}.{guess}")


def advice(complaint: str, given: Mapping[str, str], known: Iterable[str]) -> str:
    """Suggest another spelling, where the complaint is about the form of a value."""
    names = list(known)
    for name, text in given.items():
        if name not in names:
            return f".{guess}" if (guess := did_you_mean(name, names)) else ""
        if not re.search(rf"\$\.{re.escape(name)}\b|\b{re.escape(name)}: ", complaint):
            continue
        if broken := _broken(text):
            return f"; {text} was read as a text, because it is no JSON: {broken}"
        if _TEXT_WANTED.search(complaint) and not isinstance(value(text), str):
            return f"; {text} was read as JSON, and as a text it is '{json.dumps(text)}'"
    return ""

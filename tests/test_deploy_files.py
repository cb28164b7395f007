"""Every file of deploy/ passes the checker of the tool that reads it, and names what is there.

Schemas and linters come from the tools' own packages; promtool, kubectl and systemd-analyze are
used where they are installed.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import generate_latest

import milepost as mp
from milepost.cli import cli
from milepost.config import Settings
from milepost.relay.broker import kind_at
from tests.support.databases import backend_names

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
RUNBOOKS = ROOT / "docs/runbooks"
KUBERNETES = DEPLOY / "kubernetes"
SCHEMAS = ROOT / "tests/support/schemas"
BIN = Path(sys.executable).parent
WORKER_ENDS = Settings().grace + 10
"""When a supervisor kills a worker that ignores the signal; nobody may kill it sooner."""

needs = {
    tool: pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")
    for tool in ("promtool", "kubectl", "systemd-analyze")
}


def ran(*command, **options):
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=60, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def resources():
    """Read every document of the Kubernetes files but the list of them."""
    files = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [
        found for name in files for found in yaml.safe_load_all((KUBERNETES / name).read_text())
    ]


COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/milepost.json").read_text())


# Each file, by the tool that reads it


def test_the_image_is_built_as_hadolint_wants_it_and_does_not_run_as_root():
    ran(BIN / "hadolint", DEPLOY / "Dockerfile")
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    [user] = [line for line in lines if line.startswith("USER")]
    assert user == "USER 10001:10001"
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    assert all("-slim" in line for line in lines if line.startswith("FROM"))


def test_the_image_copies_files_that_are_there_and_locked():
    text = (DEPLOY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    sources = [name for line in copied for name in line.split()]
    assert [name for name in sources if not (ROOT / name).exists()] == []
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{name}" for name in sources} <= set(kept)
    extras = set(re.findall(r"--extra (\w+)", text))
    known = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    assert {"postgres", "web"} <= extras <= known


def test_compose_follows_its_specification():
    ran(
        BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"
    )
    assert {"postgres", "server", "worker", "prometheus", "grafana"} <= set(COMPOSE["services"])
    for name, service in COMPOSE["services"].items():
        mounted = [v.split(":")[0] for v in service.get("volumes", ())]
        for source in mounted:
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_dir(), (name, source)


BROKERS = {
    "nats": "nats",
    "rabbitmq": "rabbitmq",
    "redis": "redis",
    "valkey": "redis",
    "kafka": "kafka",
}
"""Profiles of brokers, and the kind that each is of."""


@pytest.mark.parametrize("name", BROKERS)
def test_a_profile_starts_one_broker_that_keeps_what_it_confirmed(name):
    """What each of them does by default loses messages, or throws them out."""
    service = COMPOSE["services"][name]
    assert service["profiles"] == [name]
    assert "ports" not in service
    assert any(volume.startswith(f"{name}:/") for volume in service["volumes"])
    told = f"{service} {(DEPLOY / 'nats/nats.conf').read_text() if name == 'nats' else ''}"
    settings = {
        "nats": ["sync_interval: always", "store_dir: /data", "nats:/data"],
        "rabbitmq": ["'hostname': 'rabbitmq'", "rabbitmq:/var/lib/rabbitmq"],
        "redis": ["--appendonly yes --appendfsync always", "--maxmemory-policy noeviction"],
        "kafka": ["'KAFKA_LOG_FLUSH_INTERVAL_MESSAGES': 1", "'KAFKA_LOG_DIRS'"],
    }
    assert [each for each in settings[BROKERS[name]] if each not in told] == []
    assert ("BROKER_PASSWORD" in told) == (name != "kafka")


def test_the_addresses_of_the_page_are_of_the_brokers_that_the_profiles_start():
    page = (DEPLOY / "README.md").read_text()
    rows = re.findall(r"^\| (`.+?) \| `(\w+)` \| (`\w+://.+?) \|", page, re.MULTILINE)
    found = {}
    for names, extra, urls in rows:
        profiles, addresses = (re.findall(r"`(.+?)`", each) for each in (names, urls))
        for profile, url in zip(profiles, addresses, strict=True):
            assert kind_at(url).name == extra
            assert urlsplit(url).hostname == profile
            found[profile] = extra
    assert found == BROKERS


def test_nats_takes_its_settings(tmp_path):
    text = (DEPLOY / "nats/nats.conf").read_text().replace("/data", str(tmp_path))
    (tmp_path / "nats.conf").write_text(text)
    ran(
        BIN / "nats-server",
        "-t",
        "--config",
        tmp_path / "nats.conf",
        env={**os.environ, "BROKER_PASSWORD": "not-a-secret"},
    )


@pytest.mark.parametrize("found", resources(), ids=lambda r: f"{r['kind']}-{r['metadata']['name']}")
def test_kubernetes_takes_each_resource(found):
    if found["apiVersion"].startswith("keda.sh/"):
        definition = yaml.safe_load((SCHEMAS / f"keda_{found['kind'].lower()}s.yaml").read_text())
        [version] = definition["spec"]["versions"]
        jsonschema.validate(found, strict(version["schema"]["openAPIV3Schema"]))
    else:
        kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


def strict(schema):
    """Refuse names that a resource's definition does not have: the server drops them silently."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        nested = {"apiVersion", "kind", "metadata"} <= set(made["properties"])
        made["properties"] |= {"metadata": {}} if nested else {}
        made.setdefault("additionalProperties", False)
    return made


@needs["kubectl"]
def test_kustomize_renders_what_the_files_say():
    rendered = list(yaml.safe_load_all(ran("kubectl", "kustomize", KUBERNETES)))
    assert len(rendered) == len(resources())
    for found in rendered:
        spec = found["spec"]
        selector = spec.get("selector", {}).get("matchLabels") or spec.get("selector")
        # Without the name they would also take the pods of other apps.
        assert selector is None or selector["app.kubernetes.io/name"] == "milepost"


@needs["systemd-analyze"]
def test_systemd_takes_the_units_and_they_are_confined(tmp_path):
    for unit in (DEPLOY / "systemd").iterdir():
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace("/srv/app/.venv/bin", str(BIN)))
        ran("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy)
        ran("systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", copy)


@needs["promtool"]
def test_prometheus_takes_its_settings_and_each_alert_fires_when_it_should(tmp_path):
    (tmp_path / "token").write_text("secret")
    for name in ("prometheus.yml", "alerts.yml", "alerts.test.yml"):
        text = (DEPLOY / "prometheus" / name).read_text()
        (tmp_path / name).write_text(text.replace("/tokens/prometheus", str(tmp_path / "token")))
    ran("promtool", "check", "config", tmp_path / "prometheus.yml")
    ran("promtool", "check", "rules", tmp_path / "alerts.yml")
    ran("promtool", "test", "rules", tmp_path / "alerts.test.yml", cwd=tmp_path)
    tried = yaml.safe_load((tmp_path / "alerts.test.yml").read_text())["tests"]
    fired = {
        case["alertname"]
        for test in tried
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in ALERTS}


@needs["promtool"]
def test_prometheus_understands_every_question_of_the_dashboard(tmp_path):
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    rules = [
        {"record": f"asked_{number}", "expr": expression.replace("$queue", ".*")}
        for number, expression in enumerate(asked)
    ]
    (tmp_path / "asked.yml").write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": rules}]}))
    ran("promtool", "check", "rules", tmp_path / "asked.yml")


def test_grafana_reads_every_word_of_the_dashboard():
    register_default_plugins()

    def read_back(document):
        return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))

    assert list(lost(DASHBOARD, read_back(DASHBOARD))) == []
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    mistyped = {**DASHBOARD, "refersh": "30s"}
    assert list(lost(mistyped, read_back(mistyped))) == [".refersh"]
    for page in (DEPLOY / "grafana/provisioning").rglob("*.yaml"):
        assert yaml.safe_load(page.read_text())["apiVersion"] == 1


def lost(written, read, path=""):
    """Name what Grafana's own classes did not take from a document."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from lost(value, read.get(key), f"{path}.{key}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for place, (value, other) in enumerate(zip(written, read, strict=True)):
            yield from lost(value, other, f"{path}[{place}]")
    elif written != read:
        yield path


# What the files name is there


def exposed(folder):
    """Name every series that a server and a worker show, read from a worker that has run a job."""
    from milepost.web.metrics import HttpMetrics

    (folder / "slow.py").write_text(
        "import milepost as mp\napp = mp.App('sqlite:///store.db')\n"
        "@app.job\ndef nothing() -> None: ...\n"
    )
    app = mp.App(f"sqlite:///{folder}/store.db")
    app.job(name="nothing")(lambda: None).submit()
    app.close()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with worker_of(folder, "--metrics", str(port)):
        wait_for(lambda: "milepost_jobs_ended_total{" in read_metrics(port))
        told = read_metrics(port)
    text = told + generate_latest(HttpMetrics().registry).decode()
    kinds = re.findall(r"^# TYPE (\w+) (\w+)", text, re.MULTILINE)
    endings = {"histogram": ("_bucket", "_sum", "_count")}
    return {name + ending for name, kind in kinds for ending in endings.get(kind, ("",))}


def read_metrics(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def test_every_metric_that_is_asked_for_is_exposed(tmp_path):
    files = [*DEPLOY.glob("prometheus/*.yml"), *DEPLOY.glob("grafana/dashboards/*.json")]
    texts = [page.read_text() for page in [*files, *RUNBOOKS.glob("*.md")]]
    asked = {name for text in texts for name in re.findall(r"\bmilepost_[a-z_]+", text)}
    assert asked
    assert asked - exposed(tmp_path) == set()


def test_every_alert_has_a_page_and_every_page_an_alert():
    told = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in ALERTS}
    for name, link in told.items():
        assert (ROOT / link).stem == name
        page = (ROOT / link).read_text()
        for part in (f"# {name}\n", "## Look\n", "## Do\n", "```sh\n"):
            assert part in page, f"{link} has no {part!r}"
    assert {page.stem for page in RUNBOOKS.glob("Milepost*.md")} == set(told)


def commands():
    """Find every call of `milepost` in the files, and in the pages that operators read."""
    yield from (
        (name, service["command"])
        for name, service in COMPOSE["services"].items()
        if service.get("image") == "milepost" and name != "setup"
    )
    [script] = COMPOSE["services"]["setup"]["command"]
    yield from (
        ("setup", shlex.split(call)) for call in re.findall(r"milepost ([^>|&\n]+)", script)
    )
    for found in resources():
        for container in found["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            yield found["metadata"]["name"], container["args"]
    for unit in (DEPLOY / "systemd").iterdir():
        [line] = re.findall(r"^ExecStart=\S+/milepost (.+)$", unit.read_text(), re.MULTILINE)
        yield unit.name, shlex.split(line)
    [image] = re.findall(r"^CMD (\[.+\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    yield "Dockerfile", json.loads(image)
    for page in [DEPLOY / "README.md", *RUNBOOKS.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if page.name != "cli.md" and "specs" not in page.parts:
            yield from ((page.name, words) for words in on_page(page.read_text()))


def on_page(text):
    """Find calls in the shell blocks of a page and between its backquotes."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    blocks = re.sub(r" \d?>.*", "", blocks)
    calls = re.findall(r"(?:^|[|&;(] ?)milepost ([^|&;>)\n]+)", blocks, re.MULTILINE)
    calls += re.findall(r"`milepost ([^`…|>]+)`", text)
    for call in calls:
        yield shlex.split(call, comments=True)


def wrong(words):
    """Say why the command line would refuse these words, or nothing."""
    context = click.Context(cli, info_name="milepost")
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        if (found := command.get_command(context, words[0])) is None:
            return None if words[0].startswith("--") else f"no command {words[0]}"
        command, words = found, words[1:]
    context = click.Context(command, parent=context)
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(words))
        for parameter in command.params:
            if isinstance(parameter.type, click.Choice) and isinstance(parameter, click.Option):
                parameter.type_cast_value(context, values.get(parameter.name))
    except click.UsageError as error:
        return error.format_message()
    return f"{rest} is too much" if rest and not isinstance(command, click.Group) else None


def test_every_command_and_flag_is_one_of_the_command_line():
    tried = list(commands())
    assert len(tried) > 50
    assert [(place, words, why) for place, words in tried if (why := wrong(words))] == []
    assert wrong(["worker", "app:app", "--proceses", "4"])
    assert wrong(["jobs", "lst"])
    assert wrong(["jobs", "ls", "--state", "FALIED"])
    assert wrong(["migrate", "now"])


def test_the_app_of_the_folder_loads_and_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("MILEPOST_DATABASE_URL", f"sqlite:///{tmp_path}/store.db")
    source = (DEPLOY / "app/app.py").read_text()
    namespace: dict[str, object] = {"__name__": "app"}
    exec(compile(source, "app.py", "exec"), namespace)
    job = namespace["convert"].submit("report", format="html")
    namespace["app"].drain()
    assert job.refresh().result == "report.html"
    namespace["app"].close()


# What the files promise


def test_nobody_kills_a_worker_that_drains():
    """H-38: a worker that is killed costs each of its jobs an attempt."""
    assert worker_pod()["terminationGracePeriodSeconds"] > WORKER_ENDS
    assert int(COMPOSE["services"]["worker"]["stop_grace_period"].removesuffix("s")) > WORKER_ENDS
    unit = (DEPLOY / "systemd/milepost-worker.service").read_text()
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0]) > WORKER_ENDS
    assert "KillMode=mixed" in unit


def worker_pod():
    return next(
        found["spec"]["template"]["spec"]
        for found in resources()
        if (found["kind"], found["metadata"]["name"]) == ("Deployment", "milepost-worker")
    )


def test_compose_sets_up_again_and_after_the_volume_of_the_token_is_lost(tmp_path):
    service = COMPOSE["services"]["setup"]
    script = service["command"][0].replace("/tokens/", f"{tmp_path}/")
    store = {"MILEPOST_DATABASE_URL": f"sqlite:///{tmp_path}/store.db"}
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    environment = {**os.environ, **path, **store}

    def set_up():
        ran(*service["entrypoint"], script, env=environment)
        return (tmp_path / "prometheus").read_text()

    first = set_up()
    assert first.startswith("mp_")
    assert set_up() == first
    (tmp_path / "prometheus").unlink()
    assert set_up() not in ("", first)
    listed = json.loads(ran(BIN / "milepost", "tokens", "ls", "--json", env=environment))
    assert [token["state"] for token in listed].count("active") == 1


def test_the_database_of_compose_has_room_for_the_workers_that_the_page_starts():
    workers = re.findall(r"--scale worker=(\d+)", (DEPLOY / "README.md").read_text())
    capacity = (ROOT / "docs/how-to/capacity.md").read_text()
    [(worker, server)] = re.findall(r"Count with (\d+) for each worker process and (\d+)", capacity)
    [most] = re.findall(r"max_connections=(\d+)", str(COMPOSE["services"]["postgres"]["command"]))
    assert max(map(int, workers)) * int(worker) + int(server) < int(most)


def test_every_deployment_has_a_budget_of_disruption():
    def named(kind):
        return {
            json.dumps(found["spec"]["selector"], sort_keys=True)
            for found in resources()
            if found["kind"] == kind
        }

    assert named("PodDisruptionBudget") == named("Deployment") != set()


def test_the_hook_of_kubernetes_lets_the_running_job_end_and_then_the_worker(tmp_path):
    [container] = worker_pod()["containers"]
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    (tmp_path / "slow.py").write_text(
        "import time, pathlib, milepost as mp\n"
        "app = mp.App('sqlite:///store.db')\n"
        "@app.job\n"
        "def sleep() -> str:\n"
        "    pathlib.Path('begun').touch()\n"
        "    while not pathlib.Path('go').exists():\n"
        "        time.sleep(0.02)\n"
        "    return 'ended'\n"
    )
    app = mp.App(f"sqlite:///{tmp_path}/store.db")
    job = app.job(name="sleep")(lambda: "").submit()
    with worker_of(tmp_path) as worker:
        wait_for((tmp_path / "begun").exists)
        # In the pod the worker is process 1.
        script = hook[-1].replace(" 1", f" {worker.pid}")
        assert script.count(str(worker.pid)) == 2
        draining = subprocess.Popen([*hook[:-1], script])
        wait_for(lambda: app.workers.list()[0].state == "DRAINING")
        assert (draining.poll(), job.refresh().state) == (None, "RUNNING")
        (tmp_path / "go").touch()
        assert worker.wait(30) == 0
        assert draining.wait(30) == 0
    assert (job.refresh().result, job.attempt) == ("ended", 1)
    app.close()


@contextmanager
def worker_of(folder, *options):
    command = [sys.executable, "-m", "milepost", "worker", "slow.py", *options]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "MILEPOST_SWEEP": "0.1"})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(happened):
    for _ in range(600):
        if happened():
            return
        subprocess.run(["sleep", "0.05"], check=True)
    raise AssertionError("it did not happen within 30 seconds")


POSTGRES = [name for name in backend_names() if name.startswith("postgres")][:1]


@pytest.mark.parametrize("backend", POSTGRES)
def test_scaling_sees_waiting_due_and_running_jobs_with_the_rights_of_a_reader(backend, backends):
    """A queue that is empty scales nobody down who is at work."""
    [scaled] = [found for found in resources() if found["kind"] == "ScaledObject"]
    queries = {t["name"]: t["metadata"]["query"] for t in scaled["spec"]["triggers"]}
    known = {"targetQueryValue", "activationTargetQueryValue", "query"}  # of KEDA's scaler
    assert all(set(t["metadata"]) <= known for t in scaled["spec"]["triggers"])
    database = backends.fresh(backend)
    app = mp.App(database.url)
    try:
        with database.raw() as raw, reader(raw, database.url) as look:
            assert {name: look(query) for name, query in queries.items()} == {
                "oldest": 0.0,
                "running": 0.0,
            }
            quick = app.job(name="quick")(lambda: None)
            quick.options(queue="other", priority=3).submit()
            raw.execute("UPDATE clock SET offset_us = 600000000")
            assert 600 <= look(queries["oldest"]) < 700
            app.queues.pause("other")
            assert look(queries["oldest"]) == 0, "workers are added for a queue that is paused"
            app.queues.resume("other")
            app.drain()
            assert look(queries["oldest"]) == 0
            quick.options(start_in=60).submit()
            raw.execute("UPDATE clock SET offset_us = 720000000")
            assert 59 <= look(queries["oldest"]) < 100
            app.drain()

            @app.job
            def watched() -> list[float]:
                return [look(queries["running"]), look(queries["oldest"])]

            job = watched.submit()
            app.drain()
            assert job.refresh().result == [1.0, 0.0]
    finally:
        app.close()
        backends.drop(database)


@contextmanager
def reader(raw, url):
    """Give the role of a reader its rights, and ask in its name on a connection of its own."""
    import psycopg

    granted = ran(BIN / "milepost", "grants", "--role", "read", "--to", "keda", "--store", url)
    raw.execute("CREATE ROLE keda")
    raw.execute(granted)

    def look(query):
        with psycopg.connect(url.partition("?schema")[0]) as connection:
            connection.execute("SET ROLE keda")
            return connection.execute(query).fetchone()[0]

    yield look
    raw.execute("DROP OWNED BY keda")
    raw.execute("DROP ROLE keda")

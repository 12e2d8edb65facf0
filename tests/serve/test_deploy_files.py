"""The files that put the server into containers agree with the server, with each other and with the repository."""

import json
import re
import shutil
import subprocess
import sys
import tomllib

import httpx
import pytest
import yaml

from slm.serve.config import ServeConfig, ServerOptions, load

ROOMS = ("data", "slm", "train", "export", "serve")
UNITS = {"s": 1, "m": 60}


@pytest.fixture(scope="module")
def deploy(repository):
    return repository / "docs" / "deploy"


@pytest.fixture(scope="module")
def dockerfile(repository):
    """Instructions with their words, continued lines joined, comments left out."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (repository / "Dockerfile").read_text(), flags=re.M))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def compose(repository):
    return yaml.safe_load((repository / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def objects(deploy):
    """The Kubernetes objects by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((deploy / "kubernetes.yaml").read_text())}


@pytest.fixture(scope="module")
def metric_names(server):
    """The names of the samples that a real server shows after a request."""
    httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 2}).raise_for_status()
    return {re.split(r"[ {]", name)[0] for name in server.metrics()}


def instruction(dockerfile, name):
    return [words for key, words in dockerfile if key == name]


def options_of(words):
    """The server's configuration that a command line gives."""
    assert words[0] == "serve"
    return load(
        ServeConfig, "serve", [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in words[1:]], literal=("model",)
    )


def seconds(text):
    return int(text[:-1]) * UNITS[text[-1]]


def test_the_image_installs_the_versions_of_pyproject(repository, dockerfile):
    dependencies = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["dependencies"]
    arguments = dict(words.split("=", 1) for words in instruction(dockerfile, "ARG"))
    assert f"llama-cpp-python=={arguments['LLAMA_CPP_PYTHON']}" in dependencies
    (torch,) = [each for each in dependencies if each.startswith("torch")]
    assert any(f'"{torch}"' in words and "${TORCH_INDEX}" in words for words in instruction(dockerfile, "RUN"))


def test_the_build_context_holds_what_the_build_needs(repository, dockerfile):
    kept = {line[1:] for line in (repository / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((repository / name).exists() for name in kept)
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert kept >= {*ROOMS, "configs", "pyproject.toml", "setup.py", project["readme"], *project["license-files"]}
    assert instruction(dockerfile, "COPY") == [". /opt/slm/source", "--from=build /opt/slm/venv /opt/slm/venv"]


def test_the_image_serves_without_rights_and_says_how_it_is(repository, dockerfile):
    (entry,), (command,) = instruction(dockerfile, "ENTRYPOINT"), instruction(dockerfile, "CMD")
    assert json.loads(entry) == ["slm"]
    config = options_of(json.loads(command))
    assert (config.host, str(config.port)) == ("0.0.0.0", *instruction(dockerfile, "EXPOSE"))
    (user,) = instruction(dockerfile, "USER")
    (uid,) = re.findall(rf"useradd [^&]*--uid (\d+) [^&]*{user} ", " ".join(instruction(dockerfile, "RUN")))
    assert int(uid) > 0
    (check,) = instruction(dockerfile, "HEALTHCHECK")
    assert f"http://127.0.0.1:{config.port}/health" in check
    # The check is a program: it must be one that Python can read.
    compile(json.loads(check[check.index("[") :])[2], "HEALTHCHECK", "exec")


def test_the_health_check_passes_on_a_server_and_fails_without_one(server, dockerfile):
    (check,) = instruction(dockerfile, "HEALTHCHECK")
    program = json.loads(check[check.index("[") :])[2]
    port = server.url.rpartition(":")[2]
    for at, status in ((port, 0), ("9", 1)):
        command = [sys.executable, "-c", program.replace("127.0.0.1:8080", f"127.0.0.1:{at}")]
        assert subprocess.run(command, capture_output=True, timeout=30).returncode == status


def test_compose_names_files_ports_and_services_that_exist(repository, deploy, compose):
    services = compose["services"]
    mounts = [mount.split(":")[0] for each in services.values() for mount in each.get("volumes", [])]
    for source in mounts:
        if source.startswith("./") and source != "./runs":
            assert (repository / source).exists(), source
        elif not source.startswith("./"):
            assert source in compose["volumes"], source
    assert all(name in services for each in services.values() for name in each.get("depends_on", []))
    servers = {name: each for name, each in services.items() if each["image"] == "slm"}
    assert len(servers) == 2
    config = options_of(next(iter(servers.values()))["command"])
    addresses = {f"{name}:{config.port}" for name in servers}
    # nginx, Prometheus and Grafana look for each other where they are.
    nginx = (deploy / "nginx.conf").read_text()
    assert set(re.findall(r"^ +server (\S+) max_fails", nginx, re.M)) == addresses
    (port,) = re.findall(r"listen (\d+);", nginx)
    assert services["nginx"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    (job,) = yaml.safe_load((deploy / "prometheus.yml").read_text())["scrape_configs"]
    assert set(job["static_configs"][0]["targets"]) == addresses
    assert job["authorization"]["credentials_file"].rpartition("/")[2] in services["prometheus"]["secrets"]
    (source,) = yaml.safe_load((deploy / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:" + services["prometheus"]["ports"][0].rpartition(":")[2]
    (folder,) = yaml.safe_load((deploy / "grafana/provisioning/dashboards/slm.yaml").read_text())["providers"]
    assert any(mount.split(":")[1] == folder["options"]["path"] for mount in services["grafana"]["volumes"])
    # Nothing is open to other machines, and no server runs without a key.
    assert all(at.startswith("127.0.0.1:") for each in services.values() for at in each.get("ports", []))
    for each in servers.values():
        assert re.match(r"\$\{SLM_API_KEY:\?", each["environment"]["SLM_API_KEY"])
        assert seconds(each["stop_grace_period"]) > ServerOptions().drain_s


def test_kubernetes_objects_belong_together(dockerfile, objects):
    deployment = objects["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == objects["Service"]["spec"]["selector"]
    assert labels == objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config = options_of(container["args"])
    assert config.host == "0.0.0.0"
    (port,) = container["ports"]
    assert port["containerPort"] == config.port
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": port["name"]}
    assert pod["terminationGracePeriodSeconds"] > config.serve.drain_s
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    # The root is read-only: where the image writes, a volume must be.
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {*instruction(dockerfile, "VOLUME"), "/tmp"} <= mounted
    assert any(str(config.model).startswith(path) for path in mounted)
    (uid,) = re.findall(r"--uid (\d+)", " ".join(instruction(dockerfile, "RUN")))
    assert pod["securityContext"]["runAsUser"] == int(uid)
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(config.port)
    target = objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])


def test_the_autoscaler_asks_for_a_metric_that_the_adapter_and_the_server_have(deploy, objects, metric_names):
    (metric,) = objects["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    (rule,) = yaml.safe_load((deploy / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert rule["name"]["as"] == name
    assert rule["seriesQuery"].startswith(name + "{")
    assert re.fullmatch(rule["name"]["matches"], name)
    assert name in metric_names


def test_the_dashboard_shows_metrics_that_the_server_has(deploy, metric_names):
    dashboard = json.loads((deploy / "grafana" / "dashboards" / "slm.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for expression in expressions for name in re.findall(r"\bslm_\w+", expression)}
    assert len(named) >= 12
    assert named <= metric_names, named - metric_names
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    (source,) = yaml.safe_load((deploy / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    (job,) = yaml.safe_load((deploy / "prometheus.yml").read_text())["scrape_configs"]
    assert set(re.findall(r'job="(.*?)"', " ".join(expressions))) == {job["job_name"]}


def test_prometheus_reads_its_configuration_and_the_queries(deploy, tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    (tmp_path / "key").write_text("k")
    text = (deploy / "prometheus.yml").read_text().replace("/run/secrets/slm_api_key", str(tmp_path / "key"))
    (tmp_path / "prometheus.yml").write_text(text)
    subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yml"], check=True, capture_output=True)
    dashboard = json.loads((deploy / "grafana" / "dashboards" / "slm.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [{"record": f"slm:panel{i}", "expr": query} for i, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    subprocess.run([promtool, "check", "rules", tmp_path / "rules.yml"], check=True, capture_output=True)

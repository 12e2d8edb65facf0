"""The hosted checks name targets, files and packages that exist."""

import re
import tomllib

import pytest
import yaml

from tests.helpers import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def ci() -> dict:
    return yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text())


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_limits_and_names_what_exists(path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["concurrency"]["cancel-in-progress"]
    publishes = {"pages": "write", "id-token": "write"} if path.name == "docs.yml" else {}
    assert workflow["permissions"] == {"contents": "read"} | publishes
    assert all(0 < job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step)
        assert set(re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))) <= targets
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
            file = step.get("with", {}).get("cache-dependency-path")
            assert file is None or (REPOSITORY / file).is_file()


def test_the_checks_cover_what_the_project_supports(ci) -> None:
    ran = " ".join(step.get("run", "") for step in steps(ci))
    assert {"lint", "test", "setup"} <= set(re.findall(r"\bmake ([a-z-]+)", ran))
    matrix = ci["jobs"]["test"]["strategy"]["matrix"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}
    assert any(name.endswith("-arm") for name in matrix["os"])
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    supported = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert matrix["python"] == supported
    # Linux has the programs that .ci/run installs. A hosted machine brings its own browser.
    needed = re.search(r"^for program in (.*?); do", (REPOSITORY / ".ci" / "run").read_text(), re.M).group(1).split()
    packages = {word.rpartition(":")[2] for word in needed} - {"chromium"}
    (install,) = [step["run"] for step in ci["jobs"]["test"]["steps"] if "apt-get" in step.get("run", "")]
    assert packages <= set(install.split())


def test_the_image_is_built_and_run_as_its_page_says(ci) -> None:
    words = " ".join(step.get("run", "") for step in ci["jobs"]["image"]["steps"])
    modules = re.findall(r" slm (train|export) ", words)
    assert modules == ["train", "export"]
    assert (REPOSITORY / "Dockerfile").is_file()
    assert (REPOSITORY / "compose.yaml").is_file()

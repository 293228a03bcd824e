"""What a release consists of beside the code: version, citation, container, templates, workflow, hooks."""

import configparser
import re
import subprocess

import yaml

import tfrank
from tests.command_lines import ROOT
from tfrank.__main__ import VERBS

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
# What Docker's reference lists.
INSTRUCTIONS = {
    *("FROM", "RUN", "CMD", "LABEL", "EXPOSE", "ENV", "ADD", "COPY", "ENTRYPOINT", "VOLUME", "USER"),
    *("WORKDIR", "ARG", "ONBUILD", "STOPSIGNAL", "HEALTHCHECK", "SHELL"),
}


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text())


def steps():
    """The instructions of the Dockerfile, each with its arguments."""
    lines = (line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#"))
    whole = "\n".join(lines).replace("\\\n", " ")
    return [line.split(maxsplit=1) for line in whole.splitlines() if line.strip()]


def test_the_version_stands_in_one_file_and_heads_the_changelog():
    assert re.findall("^## (\\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == tfrank.__version__
    for name in ("setup.cfg", "pyproject.toml", "CITATION.cff", "Dockerfile", "README.md"):
        assert tfrank.__version__ not in (ROOT / name).read_text()


def test_the_citation_names_the_licence_and_the_papers():
    citation = read_yaml("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == SETUP["metadata"]["license"]
    for paper in citation["references"]:
        assert paper["authors"] and paper["url"].rpartition("/")[2] in (ROOT / "docs/losses.md").read_text()


def test_the_dockerfile_has_only_what_docker_knows_and_what_is_here():
    found = steps()
    assert found[0][0] == "FROM" and {name for name, _ in found} <= INSTRUCTIONS
    for name, arguments in found:
        if name == "RUN":
            assert subprocess.run(["bash", "-n", "-c", arguments]).returncode == 0
            extras = re.findall(r"/src\[(.*?)\]", arguments)
            assert set(",".join(extras).split(",")) - {""} <= set(SETUP["options.extras_require"])
        if name == "COPY":
            assert all((ROOT / source).exists() for source in arguments.split()[:-1])
    verbs = re.findall(r"#     docker run .*? tfrank(?::gpu)? (\w+)", (ROOT / "Dockerfile").read_text())
    assert len(verbs) == 2 and set(verbs) <= set(VERBS)


def test_the_workflow_does_what_ci_does_on_each_python_that_setup_allows():
    job = read_yaml(".github/workflows/ci.yml")["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    lowest, below = map(int, re.findall(r"3\.(\d+)", SETUP["options"]["python_requires"]))
    pythons = [f"3.{minor}" for minor in range(lowest, below)]
    assert job["strategy"]["matrix"]["python"] == pythons
    classifiers = SETUP["metadata"]["classifiers"].splitlines()
    assert [line.rpartition(" ")[2] for line in classifiers if ":: 3." in line] == pythons


def test_the_site_is_built_alike_everywhere_and_published_from_main_alone():
    workflow = read_yaml(".github/workflows/site.yml")
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    only_main = "github.ref == 'refs/heads/main'"
    uploads = [step for step in build["steps"] if "pages" in step.get("uses", "")]
    assert [step["if"] for step in uploads] == [publish["if"]] == [only_main]
    assert workflow["permissions"] == {"contents": "read"} and publish["needs"] == "build"
    assert set(publish["permissions"].items()) == {("pages", "write"), ("id-token", "write")}
    (command,) = (step["run"] for step in build["steps"] if "sphinx-build" in step.get("run", ""))
    assert "-W" in command.split() and command.split()[-1] == uploads[0]["with"]["path"]

    hosted = read_yaml(".readthedocs.yaml")
    assert hosted["sphinx"]["fail_on_warning"] and (ROOT / hosted["sphinx"]["configuration"]).exists()
    (installed,) = hosted["python"]["install"]
    assert set(installed["extra_requirements"]) <= set(SETUP["options.extras_require"])
    (python,) = (
        one["with"]["python-version"] for one in build["steps"] if "setup-python" in one.get("uses", "")
    )
    assert hosted["build"]["tools"]["python"] == python


def test_hooks_run_the_ruff_that_ci_runs_and_load_nothing():
    (repo,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        assert hook["language"] == "system"
        assert hook["name"] in (ROOT / ".ci/run").read_text()


def test_each_issue_template_asks_something():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir():
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form)
        assert any(field["validations"]["required"] for field in form["body"] if "validations" in field)

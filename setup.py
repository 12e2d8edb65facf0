"""What pyproject.toml cannot express: the list of all packages. The stages and ``configs/`` lie next to ``slm/`` here
and inside it in a wheel: folders of these names among everybody's packages would belong to anybody."""

from setuptools import find_namespace_packages, setup

STAGES = ("data", "train", "export", "serve", "studio")

setup(
    packages=[
        *find_namespace_packages(include=["slm", "slm.*"]),
        *(f"slm.{each}" for stage in STAGES for each in find_namespace_packages(include=[stage, f"{stage}.*"])),
        "slm.configs",
    ],
)

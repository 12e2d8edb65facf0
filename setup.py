"""What pyproject.toml cannot express: the list of all packages. The stages and ``configs/`` lie next to ``slm/`` here
and inside it in a wheel: folders of these names among everybody's packages would belong to anybody."""

from setuptools import find_namespace_packages, setup

FOLDERS = ("data", "train", "export", "serve", "studio", "configs")

setup(
    packages=[
        *find_namespace_packages(include=["slm", "slm.*"]),
        *(f"slm.{each}" for name in FOLDERS for each in find_namespace_packages(include=[name, f"{name}.*"])),
    ],
)

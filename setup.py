"""What pyproject.toml cannot express: the folder ``configs/`` lies next to the packages here, and inside ``slm`` in a
wheel, because a folder of that name among everybody's packages would belong to anybody."""

from setuptools import find_namespace_packages, setup

ROOMS = ("data", "slm", "train", "export", "serve")

setup(
    packages=[
        *find_namespace_packages(include=[*ROOMS, *(f"{room}.*" for room in ROOMS)]),
        "slm.configs",
    ],
    package_dir={"slm.configs": "configs"},
)

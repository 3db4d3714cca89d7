"""The recipe of Spack, for ``packages/py_distscan/package.py`` of a repository of recipes."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyDistscan(PythonPackage):
    """The prefix scan of data that is spread over many GPUs and MPI ranks."""

    pypi = "distscan/distscan-0.1.0.tar.gz"

    license("BSD-3-Clause")

    # Its checksum, by `spack checksum py-distscan`, when the source archive is published. Before:
    # `spack dev-build py-distscan@0.1.0` in a checkout.
    version("0.1.0")

    variant("cuda", default=False, description="Scan CuPy arrays, on NVIDIA GPUs")
    variant("hdf5", default=False, description="Scan HDF5 files")

    depends_on("cxx", type="build")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatchling@1.27:", type="build")
    depends_on("py-numpy@2.2:", type=("build", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"))
    depends_on("py-xxhash@3.5:", type=("build", "run"))

    depends_on("py-cupy@14: +cuda", when="+cuda", type=("build", "run"))
    depends_on("py-h5py@3.12:", when="+hdf5", type=("build", "run"))

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        # Kernels for every level of instructions: the CPU decides when distscan is imported.
        env.set("DISTSCAN_CPU_LEVELS", "all")

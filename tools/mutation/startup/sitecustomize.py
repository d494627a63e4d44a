"""Python imports this file at its start when this folder is on PYTHONPATH: tests' own processes are reached so."""

import os

if "MUTANT_MODULE" in os.environ:
    from mutation.hook import install_from_environment

    install_from_environment()
if "MUTANT_COVERAGE" in os.environ:
    from mutation.subprocess_coverage import measure_this_process

    measure_this_process()

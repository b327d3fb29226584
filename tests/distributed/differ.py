"""`saccade train` with another configuration for each process: FIRST SECOND FOLDER.

In place of configurations they may be folders, in each of which there is a run.toml.
"""

import os
import sys

from saccade.cli import main

if __name__ == "__main__":
    *configs, folder = sys.argv[1:]
    config = configs[int(os.environ["RANK"])]
    if os.path.isdir(config):
        os.chdir(config)
        config = "run.toml"
    sys.argv = ["saccade", "train", config, "--out", f"{folder}/run"]
    main()

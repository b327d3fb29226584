"""`saccade train` with another configuration for each process: FIRST SECOND FOLDER."""

import os
import sys

from saccade.cli import main

if __name__ == "__main__":
    *configs, folder = sys.argv[1:]
    config = configs[int(os.environ["RANK"])]
    sys.argv = ["saccade", "train", config, "--out", f"{folder}/run"]
    main()

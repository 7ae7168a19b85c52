"""How long a newcomer waits: the import of the package, and the default sweep of lesson 4 from nothing.

python benchmarks/bench_start.py
"""

import statistics
import subprocess
import sys
import time

from bench import report


def seconds(*command):
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main():
    rows = []
    inside = "import time; start = time.perf_counter(); import dgc_lab; print(time.perf_counter() - start)"
    taken = [
        float(subprocess.run([sys.executable, "-c", inside], check=True, capture_output=True, text=True).stdout)
        for _ in range(5)
    ]
    rows.append({"what": "import dgc_lab", "seconds": statistics.median(taken), "goal": "under 0.3"})
    ratios = "1,0.1,0.01,0.001,0"
    taken = [seconds(sys.executable, "-m", "dgc_lab", "sweep", "--ratios", ratios) for _ in range(3)]
    name = "lesson 4's default sweep (5 ratios, 300 steps), TensorFlow's start included"
    rows.append({"what": name, "seconds": statistics.median(taken), "goal": "under 60"})
    report("start", rows, {"0.3 s over the import's time": (0.3 / rows[0]["seconds"], 1)})


if __name__ == "__main__":
    main()

"""Cost of the live widget: the same training in a real Jupyter kernel with and without the widget, in interleaved runs.

DGC_LAB_DATA=/path/to/mnist.npz python benchmarks/bench_widget.py
"""

import json

from bench import report

# Runs in a kernel, so that every picture is sent to a front end as in a lesson.
CELL = """
import json, time
from IPython.display import display
from dgc_lab.workloads.data import load
from dgc_lab.training.sweeps import sweep
from dgc_lab.training.masking_trainer import Trainer
from dgc_lab.training.masking_widget import CompressionSweep

def measure(rounds, **values):
    lab = CompressionSweep(ratios="0.01", **values)
    display(lab)
    settings = lab.settings()
    trainer = Trainer(settings, load(settings.dataset))
    for _ in sweep(settings, [0.5], trainer=trainer):
        pass
    lab.experiment.trainer.last, lab.experiment.data = trainer, trainer.data
    plain, live, pictures = [], [], []
    lab.image.observe(lambda _: pictures.append(1), "value")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in sweep(settings, [0.01], trainer=trainer):
            pass
        plain.append(time.perf_counter() - start)
        lab.clear()
        pictures.clear()
        start = time.perf_counter()
        lab.start()
        lab.wait()
        live.append(time.perf_counter() - start)
        assert lab.rows, lab.message.value
    middle = rounds // 2
    times = {"plain": sorted(plain)[middle], "live": sorted(live)[middle]}
    return {**times, "pictures": len(pictures), "steps": settings.steps}

digits = measure(5, steps=2000)
mnist = measure(5, dataset="mnist", steps=200, batch=100, learning_rate=0.01)
print(json.dumps({"digits_cnn": digits, "mnist_cnn": mnist}))
"""


def main():
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
    printed = "".join(
        output.text for output in notebook.cells[0].outputs if output.get("name") == "stdout" and "plain" in output.text
    )
    rows, goals = [], {}
    for model, found in json.loads(printed).items():
        ratio = found["plain"] / found["live"]
        rows.append(
            {
                "model": model,
                "steps": found["steps"],
                "steps/s without": found["steps"] / found["plain"],
                "steps/s with the widget": found["steps"] / found["live"],
                "ratio": ratio,
                "pictures per second": found["pictures"] / found["live"],
            }
        )
        goals[f"throughput with the live widget divided by that without ({model})"] = ratio, 0.97
    report("widget", rows, goals)


if __name__ == "__main__":
    main()

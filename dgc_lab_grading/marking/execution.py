"""Run a submission's cells so that none can spoil the others: nbgrader's Execute with more safeguards.

- A cell that kills the kernel, or cannot be interrupted, is left out, and the notebook runs again without it.
- A cell that prints endlessly is stopped before it fills the memory.
- When the time for all cells is up, the remaining cells are left out, and earlier results count.
- Test cells do not run in the student's kernel: `answers` forks the kernel at each one, and after the last cell `judge`
  queries these forks from its own process.
- Messages from a kernel that a notebook cannot hold, or that nbclient cannot read, end a cell, never the submission.
- Definitions that a failed cell did not reach are run all the same.
- Remarks for the instructor's report say what happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import zmq
from jupyter_core.utils import ensure_async, run_sync
from nbclient.client import CellExecutionComplete
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell, new_output
from nbgrader.preprocessors import Execute
from traitlets import Integer, List, Unicode

from dgc_lab_grading.marking.answers import ENDED_AT
from dgc_lab_grading.marking.outputs import clean, error_output

SECONDS_TO_GIVE_IN, SECONDS_TO_START = 3, 30
TIMES_IN_ALL = 20  # the output of all cells is limited to this multiple of a cell's limit
ANSWERS = "__import__('dgc_lab_grading.marking.answers', fromlist=['keep'])"
KEEP = f"{ANSWERS}.keep(get_ipython(), {{!r}}, {{!r}}, {{!r}}, {{!r}})"
DEFINE_REST = f"{ANSWERS}.define_rest(get_ipython(), {{!r}})"


class CarefulExecute(Execute):
    """Preprocessor described at the top of this module."""

    most_output = Integer(1_000_000, help="characters that a cell may print before it is stopped").tag(config=True)
    most_restarts = Integer(3, help="cells that may kill the kernel before grading fails").tag(config=True)
    most_seconds = Integer(280, help="time limit of all cells together").tag(config=True)
    most_test_seconds = Integer(60, help="time limit of all tests together").tag(config=True)
    judge = List([], help="command that runs the tests; a socket's number is appended").tag(config=True)
    exercise = List([], help="the exercise's source, in the judge's format").tag(config=True)
    kernel_folder = Unicode("", help="folder that the kernel writes to; emptied before each start").tag(config=True)
    remarks = List([], help="events for the report")

    def preprocess(self, nb, resources=None, km=None):
        """Run the notebook, and again without each cell that killed the kernel."""
        self.fatal, self.remarks, self.deadline = {}, [], time.monotonic() + self.most_seconds
        for _ in range(self.most_restarts + 1):
            self.characters, self.running, self.spent, self.interrupt, self.kept = {}, 0, "", None, set()
            shutil.rmtree(self.kernel_folder, ignore_errors=True)  # a kernel's files must not affect the next one
            os.mkdir(self.kernel_folder)
            with socket.socket(socket.AF_UNIX) as self.listener:
                self.listener.bind(os.path.join(self.kernel_folder, "answers"))
                self.listener.listen(len(nb.cells))
                try:
                    found = super().preprocess(nb, resources, km)
                except DeadKernelError:
                    self._leave_out(self.running, f"{self.spent or 'ended its process'}; graded without it")
                else:
                    for cell in nb.cells:
                        clean(cell)
                    return found
        raise DeadKernelError(f"{len(self.fatal)} cells ended the process")

    def _leave_out(self, cell_index, words):
        """Remark on a cell, and leave it out if the notebook has to run again."""
        self.fatal[cell_index] = words
        self._remark(cell_index, words)

    def _remark(self, cell_index, words):
        name = _kind(self.nb.cells[cell_index]).get("grade_id", "the student's own")
        remark = f"cell {cell_index + 1} ({name}) {words}"
        if remark not in self.remarks:  # a cell may send a hundred thousand messages that cannot be read
            self.remarks = [*self.remarks, remark]

    def preprocess_cell(self, cell, resources, index):
        """Run a cell, or give it an error if it killed a kernel before, or if the time is up."""
        words = f"this cell {self.fatal[index]}" if index in self.fatal else None
        if words is None and time.monotonic() > self.deadline and cell.cell_type == "code":
            words = f"the time limit of {self.most_seconds} s was reached before this cell"
            if not any("was reached" in remark for remark in self.remarks):
                reached = f"the time limit of {self.most_seconds} s was reached"
                self._remark(index, f"and all later cells were left out: {reached}")
        if words is not None:
            cell.outputs = [error_output("LeftOut", words)]
            found = cell, self.resources
        else:
            found = super().preprocess_cell(cell, resources, index)
        if index == len(self.nb.cells) - 1:
            self._judge()
        return found

    async def async_start_new_kernel_client(self):
        """Start a client that never waits endlessly for a kernel with broken sockets."""
        client = await super().async_start_new_kernel_client()
        client.hb_channel.stop()  # unused, and a beat that cannot be sent would delay the shutdown
        for channel in (client.shell_channel, client.control_channel):
            channel.socket.sndtimeo = 1000 * SECONDS_TO_GIVE_IN
        return client

    start_new_kernel_client = run_sync(async_start_new_kernel_client)

    async def _async_cleanup_kernel(self):
        """Kill the kernel before nbclient's cleanup, whose shutdown request could wait endlessly."""
        if self.km.has_kernel:
            await ensure_async(self.km.signal_kernel(signal.SIGKILL))
            await self.km.provisioner.wait()
        await super()._async_cleanup_kernel()

    _cleanup_kernel = run_sync(_async_cleanup_kernel)

    async def async_execute_cell(self, cell, cell_index, execution_count=None, store_history=True):
        """Run a cell; give up a kernel that accepts no messages, or sends some that cannot be read."""
        try:
            return await self._execute_cell(cell, cell_index, execution_count, store_history)
        except DeadKernelError:
            raise
        except zmq.Again:
            await self._give_up()
        except Exception as error:  # nbclient may raise any error, which would end the whole notebook
            self.log.exception("cell %s", cell_index)
            await self._give_up(f"sent the notebook something that it cannot read ({type(error).__name__})")

    execute_cell = run_sync(async_execute_cell)

    async def _execute_cell(self, cell, cell_index, execution_count, store_history):
        """Run a cell, or fork the kernel at a test cell; see the top of this module."""
        if _is_test(cell):
            cell.outputs = []
            setup = next((each.source for each in self.nb.cells if _kind(each).get("grade_id") == "setup"), "")
            given = [each.source for each in self.nb.cells[:cell_index] if _kind(each).get("solution")]
            path = self.listener.getsockname()
            request = self.kc.execute(KEEP.format(path, cell_index, setup, "".join(given[-1:])), silent=True)
            reply = await self.async_wait_for_reply(request)
            if reply is None:  # an earlier cell has broken the kernel
                await self._give_up()
            if reply["content"]["status"] == "ok":
                self.kept.add(cell_index)
            else:
                self._remark(cell_index, "could not be tested: the process could not be forked")
        else:
            self.running = cell_index
            cell = await super().async_execute_cell(cell, cell_index, execution_count, store_history)
        if self.interrupt is not None:  # it must arrive before the next cell begins
            arrived, self.interrupt = await self.interrupt, None
            if not (arrived and await self._idle()):  # the next cell would be blamed for it
                await self._give_up()
        failed = [output for output in cell.get("outputs", ()) if output.output_type == "error"]
        if _kind(cell).get("solution") and any(output.ename == "SyntaxError" for output in failed):
            self._remark(cell_index, f"is not valid in Python {sys.version_info.major}.{sys.version_info.minor}")
        if failed and not cell.source.startswith(ANSWERS):
            await self._define_rest(cell, cell_index)
        return cell

    async def _define_rest(self, cell, cell_index):
        """Run the definitions that a failed cell did not reach, and remark on them."""
        rest = new_code_cell(DEFINE_REST.format(cell.source))
        await self._execute_cell(rest, cell_index, None, True)
        self.nb.cells[cell_index] = cell
        printed = [output for output in rest.outputs if output.output_type == "stream"]
        cell.outputs += printed
        if ended := ENDED_AT.match("".join(output.text for output in printed)):
            self._remark(cell_index, f"{ended[1]}; the definitions below were run all the same")

    def _judge(self):
        """Run the tests with `judge`, and put the results under their cells."""
        places = {_kind(cell)["grade_id"]: index for index, cell in enumerate(self.nb.cells) if _is_test(cell)}
        kept = {name: index for name, index in places.items() if index in self.kept}
        sources = [cell.source for cell in self.nb.cells if cell.cell_type == "code" and not _is_test(cell)]
        task = {
            "cells": [cell | {"place": kept.get(cell["name"])} for cell in self.exercise],
            "lines": sorted({line.strip() for source in sources for line in source.split("\n") if line.strip()}),
            "seconds": self.most_test_seconds,
            "cell_seconds": self.timeout,
        }
        number = self.listener.fileno()
        process = subprocess.Popen(
            [*self.judge, str(number)], stdin=-1, stdout=-1, stderr=sys.stderr, pass_fds=[number], text=True
        )
        try:
            printed, _ = process.communicate(json.dumps(task), self.most_test_seconds + SECONDS_TO_START)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
        lines = [json.loads(line) for line in printed.splitlines(keepends=True) if line.endswith("\n")]
        if {"ready": len(places)} not in lines:
            raise RuntimeError("the exercise's own cells and reference answers do not run")
        results = {line["name"]: line for line in lines if "name" in line}
        for name, place in places.items():
            cell, result = self.nb.cells[place], results.get(name)
            if result is None:
                self._remark(place, "was not fully tested: the tests did not finish")
            elif result["remark"]:
                self._remark(place, result["remark"])
            if result and result["printed"]:
                cell.outputs.append(new_output("stream", name="stdout", text=result["printed"]))
            if not result or not result["passed"]:
                cell.outputs.append(
                    error_output("NotPassed", result["error"] if result else "the tests did not finish")
                )

    def _get_timeout(self, cell):
        """Return a cell's timeout, at most the time left for all cells."""
        return max(1, min(self.timeout, int(self.deadline - time.monotonic())))

    def process_message(self, msg, cell, cell_index):
        """Handle a message as nbclient does, and leave out one that it cannot read."""
        try:
            return super().process_message(msg, cell, cell_index)
        except CellExecutionComplete:
            raise
        except Exception as error:  # the student's process can send anything
            self._remark(cell_index, f"sent a message that was left out ({type(error).__name__})")
            return None

    def handle_comm_msg(self, outs, msg, cell_index):
        """Ignore widgets: nbclient imitates a front end for some, and nobody reads their output."""

    def output(self, outs, msg, display_id, cell_index):
        """Handle output as nbclient does, up to ``most_output`` characters a cell.

        nbgrader gives no points to a cell with standard error, even a warning, so all streams become standard output.
        """
        if msg["msg_type"] == "stream":
            msg["content"]["name"] = "stdout"
        if msg["msg_type"] == "execute_result":  # nbgrader would read a number in it as points
            msg["msg_type"] = msg["header"]["msg_type"] = "display_data"
        before = self.characters.get(cell_index, 0)
        if before > self.most_output:
            return None
        # Output of a cell beyond its limit is discarded, and does not count against later cells.
        printed = self.characters[cell_index] = min(before + len(str(msg["content"])), self.most_output + 1)
        if sum(self.characters.values()) > TIMES_IN_ALL * self.most_output or printed > self.most_output:
            words = "was stopped: all cells together printed too much"
            if printed > self.most_output:
                words = f"printed more than {self.most_output:,} characters and was stopped"
            self.characters[cell_index] = self.most_output + 1
            self._leave_out(cell_index, words)
            outs.append(new_output("stream", name="stdout", text=f"\n... this cell {words}\n"))
            self.interrupt = asyncio.ensure_future(self._interrupt())
            return None
        return super().output(outs, msg, display_id, cell_index)

    async def _async_handle_timeout(self, timeout, cell=None):
        """Stop a cell whose time is up; give up a kernel that ignores the interrupt."""
        self._leave_out(self.running, f"took longer than {timeout} s and was stopped")
        if not (await self._interrupt() and await self._idle()):
            await self._give_up()
        return {"content": {**self.error_on_timeout, "status": "error"}}

    async def _give_up(self, words="could not be stopped"):
        """Give up a kernel that the last cell has made unusable; the words say how."""
        self.spent = words
        raise DeadKernelError("the kernel cannot be interrupted")

    async def _interrupt(self) -> bool:
        """Interrupt the kernel, and return whether it arrived: a pending one could hit a later cell."""
        request = self.kc.session.msg("interrupt_request", {})
        self.kc.control_channel.send(request)
        return await self._answers(self.kc.get_control_msg, request["header"]["msg_id"])

    async def _idle(self) -> bool:
        """Return whether the kernel accepts requests again soon after an interrupt."""
        return await self._answers(self.kc.get_shell_msg, self.kc.kernel_info())

    async def _answers(self, get_message, request: str) -> bool:
        """Return whether the reply to a request arrives within `SECONDS_TO_GIVE_IN`."""
        deadline = asyncio.get_running_loop().time() + SECONDS_TO_GIVE_IN
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                answer = await get_message(timeout=left)
            except Exception:  # queue.Empty: no reply in time
                return False
            if answer["parent_header"].get("msg_id") == request:
                return True
        return False


def _kind(cell) -> dict:
    """Return nbgrader's metadata of a cell."""
    return cell.metadata.get("nbgrader", {})


def _is_test(cell) -> bool:
    """Return whether a cell is a test, rather than an answer that a person marks."""
    return cell.cell_type == "code" and bool(_kind(cell).get("grade")) and not _kind(cell).get("solution")

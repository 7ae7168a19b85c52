"""Run a submission's cells so that none of them can spoil the others: nbgrader's Execute with more answers.

- A cell that ends the kernel, or cannot be interrupted, is left out, and the notebook runs again without it.
- A cell that prints without end is stopped before it fills the memory.
- When the time of all cells together is over, the rest is left out, and what ran before counts.
- A cell that gives marks does not run in the student's kernel: `dgc_lab.marking.answers` keeps a copy of the kernel at
  its place, and when all cells have run `dgc_lab.marking.judge` asks these copies, from a process of its own.
- What happened is said in words, for the instructor's report.
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
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute
from traitlets import Integer, List, Unicode

SECONDS_TO_GIVE_IN, SECONDS_TO_START = 3, 30
TIMES_IN_ALL = 20  # as much as one cell may print, all together may
KEEP = "__import__('dgc_lab.marking.answers', fromlist=['keep']).keep(get_ipython(), {!r}, {!r}, {!r})"


class CarefulExecute(Execute):
    """See the top of this module."""

    most_output = Integer(1_000_000, help="characters that a cell may print before it is stopped").tag(config=True)
    most_restarts = Integer(3, help="cells that may end the kernel before the rest is given up").tag(config=True)
    most_seconds = Integer(280, help="of all cells together").tag(config=True)
    most_test_seconds = Integer(60, help="of all tests together").tag(config=True)
    judge = List([], help="command that runs the tests; a socket's number is put after it").tag(config=True)
    exercise = List([], help="the exercise's source, as the judge reads it").tag(config=True)
    kernel_folder = Unicode("", help="that the kernel writes to; emptied before each start").tag(config=True)
    remarks = List([], help="what happened, in words")

    def preprocess(self, nb, resources=None, km=None):
        """As nbconvert's; again without the cell that ended the kernel."""
        self.fatal, self.remarks, self.deadline = {}, [], time.monotonic() + self.most_seconds
        for _ in range(self.most_restarts + 1):
            self.characters, self.running, self.spent, self.interrupt, self.kept = {}, 0, False, None, set()
            shutil.rmtree(self.kernel_folder, ignore_errors=True)  # what a kernel left must not decide how one starts
            os.mkdir(self.kernel_folder)
            with socket.socket(socket.AF_UNIX) as self.listener:
                self.listener.bind(os.path.join(self.kernel_folder, "answers"))
                self.listener.listen(len(nb.cells))
                try:
                    return super().preprocess(nb, resources, km)
                except DeadKernelError:
                    words = "could not be stopped" if self.spent else "ended its process"
                    self._leave_out(self.running, f"{words}; graded without it")
        raise DeadKernelError(f"{len(self.fatal)} cells ended the process")

    def _leave_out(self, cell_index, words):
        """Say what a cell did; should the notebook have to run again, it is not in it."""
        self.fatal[cell_index] = words
        self._remark(cell_index, words)

    def _remark(self, cell_index, words):
        name = _kind(self.nb.cells[cell_index]).get("grade_id", "the student's own")
        self.remarks = [*self.remarks, f"cell {cell_index + 1} ({name}) {words}"]

    def preprocess_cell(self, cell, resources, index):
        """As nbconvert's; a cell that has ended a kernel before gets an error in its place."""
        words = f"this cell {self.fatal[index]}" if index in self.fatal else None
        if words is None and time.monotonic() > self.deadline and cell.cell_type == "code":
            words = f"the time of {self.most_seconds} s was over before this cell"
            if not any("was over" in remark for remark in self.remarks):
                self._remark(index, f"and those after it were left out: the time of {self.most_seconds} s was over")
        if words is not None:
            cell.outputs = [_error("LeftOut", words)]
            found = cell, self.resources
        else:
            found = super().preprocess_cell(cell, resources, index)
        if index == len(self.nb.cells) - 1:
            self._judge()
        return found

    async def async_start_new_kernel_client(self):
        """As nbclient's, where nothing waits without end for a kernel that has spoiled its sockets."""
        client = await super().async_start_new_kernel_client()
        client.hb_channel.stop()  # nobody needs it, and a beat that cannot be sent would hold up the end
        for channel in (client.shell_channel, client.control_channel):
            channel.socket.sndtimeo = 1000 * SECONDS_TO_GIVE_IN
        return client

    start_new_kernel_client = run_sync(async_start_new_kernel_client)

    async def _async_cleanup_kernel(self):
        """As nbclient's, of a kernel that is not asked to end but made to: who asks could wait without end, too."""
        if self.km.has_kernel:
            await ensure_async(self.km.signal_kernel(signal.SIGKILL))
            await self.km.provisioner.wait()
        await super()._async_cleanup_kernel()

    _cleanup_kernel = run_sync(_async_cleanup_kernel)

    async def async_execute_cell(self, cell, cell_index, execution_count=None, store_history=True):
        """As nbclient's; a kernel that takes no message is ended."""
        try:
            return await self._execute_cell(cell, cell_index, execution_count, store_history)
        except zmq.Again:
            await self._give_up()

    execute_cell = run_sync(async_execute_cell)

    async def _execute_cell(self, cell, cell_index, execution_count, store_history):
        """For a cell that gives marks, see the top of this module."""
        if _gives_marks(cell):
            cell.outputs = []
            setup = next((each.source for each in self.nb.cells if _kind(each).get("grade_id") == "setup"), "")
            path = self.listener.getsockname()
            request = self.kc.execute(KEEP.format(path, cell_index, setup), silent=True)
            reply = await self.async_wait_for_reply(request)
            if reply is None:  # the cell before has spoiled the kernel
                await self._give_up()
            if reply["content"]["status"] == "ok":
                self.kept.add(cell_index)
            else:
                self._remark(cell_index, "could not be asked: the process could not be copied")
        else:
            self.running = cell_index
            cell = await super().async_execute_cell(cell, cell_index, execution_count, store_history)
        if self.interrupt is not None:  # it must have come before the next cell begins
            come, self.interrupt = await self.interrupt, None
            if not (come and await self._idle()):  # the next cell would be blamed for it
                await self._give_up()
        return cell

    def _judge(self):
        """Run the tests, and put what came of them under their cells; see `dgc_lab.marking.judge`."""
        places = {_kind(cell)["grade_id"]: index for index, cell in enumerate(self.nb.cells) if _gives_marks(cell)}
        kept = {name: index for name, index in places.items() if index in self.kept}
        own = [cell.source for cell in self.nb.cells if cell.cell_type == "code" and not _gives_marks(cell)]
        given = {
            "cells": [cell | {"place": kept.get(cell["name"])} for cell in self.exercise],
            "lines": sorted({line.strip() for source in own for line in source.split("\n") if line.strip()}),
            "seconds": self.most_test_seconds,
            "cell_seconds": self.timeout,
        }
        number = self.listener.fileno()
        process = subprocess.Popen(
            [*self.judge, str(number)], stdin=-1, stdout=-1, stderr=sys.stderr, pass_fds=[number], text=True
        )
        try:
            printed, _ = process.communicate(json.dumps(given), self.most_test_seconds + SECONDS_TO_START)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
        lines = [json.loads(line) for line in printed.splitlines(keepends=True) if line.endswith("\n")]
        if {"ready": len(places)} not in lines:
            raise RuntimeError("the exercise's own cells and answers do not run")
        results = {line["name"]: line for line in lines if "name" in line}
        for name, place in places.items():
            cell, result = self.nb.cells[place], results.get(name)
            if result is None:
                self._remark(place, "the tests came to no end")
            elif result["remark"]:
                self._remark(place, result["remark"])
            if result and result["printed"]:
                cell.outputs.append(new_output("stream", name="stdout", text=result["printed"]))
            if not result or not result["passed"]:
                cell.outputs.append(_error("NotPassed", result["error"] if result else "the tests came to no end"))

    def _get_timeout(self, cell):
        """As nbclient's, and not longer than what is left for all."""
        return max(1, min(self.timeout, int(self.deadline - time.monotonic())))

    def output(self, outs, msg, display_id, cell_index):
        """As nbclient's, up to so many characters a cell.

        nbgrader takes a cell's marks away when there is standard error, be it a warning: here all is standard output.
        """
        if msg["msg_type"] == "stream":
            msg["content"]["name"] = "stdout"
        if msg["msg_type"] == "execute_result":  # nbgrader would take a number in it for the marks
            msg["msg_type"] = msg["header"]["msg_type"] = "display_data"
        before = self.characters.get(cell_index, 0)
        if before > self.most_output:
            return None
        # What comes of a cell after its limit is thrown away, and is not held against those after it.
        printed = self.characters[cell_index] = min(before + len(str(msg["content"])), self.most_output + 1)
        if sum(self.characters.values()) > TIMES_IN_ALL * self.most_output or printed > self.most_output:
            words = "was stopped: all cells together have printed too much"
            if printed > self.most_output:
                words = f"printed more than {self.most_output:,} characters and was stopped"
            self.characters[cell_index] = self.most_output + 1
            self._leave_out(cell_index, words)
            outs.append(new_output("stream", name="stdout", text=f"\n... this cell {words}\n"))
            self.interrupt = asyncio.ensure_future(self._interrupt())
            return None
        return super().output(outs, msg, display_id, cell_index)

    async def _async_handle_timeout(self, timeout, cell=None):
        """As nbclient's; a kernel that works on in spite of the interrupt is ended."""
        self._leave_out(self.running, f"took longer than {timeout} s and was stopped")
        if not (await self._interrupt() and await self._idle()):
            await self._give_up()
        return {"content": {**self.error_on_timeout, "status": "error"}}

    async def _give_up(self):
        """Do without a kernel that the cell which ran last has made useless."""
        self.spent = True
        raise DeadKernelError("the kernel cannot be interrupted")

    async def _interrupt(self) -> bool:
        """Interrupt the kernel; whether that has come. What is still on its way could strike a cell after this one."""
        request = self.kc.session.msg("interrupt_request", {})
        self.kc.control_channel.send(request)
        return await self._answers(self.kc.get_control_msg, request["header"]["msg_id"])

    async def _idle(self) -> bool:
        """Whether the kernel takes requests again soon after it was interrupted."""
        return await self._answers(self.kc.get_shell_msg, self.kc.kernel_info())

    async def _answers(self, get_message, request: str) -> bool:
        """Whether the answer to a request comes within the time to give in."""
        deadline = asyncio.get_running_loop().time() + SECONDS_TO_GIVE_IN
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                answer = await get_message(timeout=left)
            except Exception:  # queue.Empty: nothing came in time
                return False
            if answer["parent_header"].get("msg_id") == request:
                return True
        return False


def _kind(cell) -> dict:
    """nbgrader's metadata of a cell."""
    return cell.metadata.get("nbgrader", {})


def _gives_marks(cell) -> bool:
    """Whether a cell is a test, and no answer that a person marks."""
    return cell.cell_type == "code" and bool(_kind(cell).get("grade")) and not _kind(cell).get("solution")


def _error(name: str, words: str):
    """An output that nbgrader gives no marks for."""
    return new_output("error", ename=name, evalue=words, traceback=[words])

"""Run a submission's cells so that none of them can spoil the others: nbgrader's Execute with three more answers.

- A cell that ends the kernel, or cannot be interrupted, is left out, and the notebook runs again without it.
- A cell that prints without end is stopped before it fills the memory.
- What happened is said in words, for the instructor's report.
"""

from __future__ import annotations

import asyncio

from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute
from traitlets import Integer, List

SECONDS_TO_GIVE_IN = 3


class CarefulExecute(Execute):
    """See the top of this module."""

    most_output = Integer(1_000_000, help="characters that a cell may print before it is stopped").tag(config=True)
    most_restarts = Integer(3, help="cells that may end the kernel before the rest is given up").tag(config=True)
    remarks = List([], help="what happened, in words")

    def preprocess(self, nb, resources=None, km=None):
        """As nbconvert's; again without the cell that ended the kernel."""
        self.fatal, self.remarks = {}, []
        for _ in range(self.most_restarts + 1):
            self.characters, self.running, self.spent = {}, 0, False
            try:
                return super().preprocess(nb, resources, km)
            except DeadKernelError:
                words = "could not be stopped" if self.spent else "ended its process"
                self._leave_out(self.running, f"{words}; graded without it")
        raise DeadKernelError(f"{len(self.fatal)} cells ended the process")

    def _leave_out(self, cell_index, words):
        """Say what a cell did; should the notebook have to run again, it is not in it."""
        self.fatal[cell_index] = words
        name = self.nb.cells[cell_index].metadata.get("nbgrader", {}).get("grade_id", "the student's own")
        self.remarks = [*self.remarks, f"cell {cell_index + 1} ({name}) {words}"]

    def preprocess_cell(self, cell, resources, index):
        """As nbconvert's; a cell that has ended a kernel before gets an error in its place."""
        self.running = index
        if index in self.fatal:
            words = f"this cell {self.fatal[index]}"
            cell.outputs = [new_output("error", ename="LeftOut", evalue=words, traceback=[f"LeftOut: {words}"])]
            return cell, self.resources
        return super().preprocess_cell(cell, resources, index)

    def output(self, outs, msg, display_id, cell_index):
        """As nbclient's, up to so many characters a cell.

        nbgrader takes a cell's marks away when there is standard error, be it a warning: here all is standard output.
        """
        if msg["msg_type"] == "stream":
            msg["content"]["name"] = "stdout"
        before = self.characters.get(cell_index, 0)
        self.characters[cell_index] = before + len(str(msg["content"]))
        if before > self.most_output:
            return None
        if self.characters[cell_index] > self.most_output:
            words = f"printed more than {self.most_output:,} characters and was stopped"
            self._leave_out(cell_index, words)
            outs.append(new_output("stream", name="stdout", text=f"\n... this cell {words}\n"))
            self.interrupt = asyncio.ensure_future(self.km.interrupt_kernel())
            return None
        return super().output(outs, msg, display_id, cell_index)

    async def _async_handle_timeout(self, timeout, cell=None):
        """As nbclient's; a kernel that works on in spite of the interrupt is ended."""
        self._leave_out(self.running, f"took longer than {timeout} s and was stopped")
        reply = await super()._async_handle_timeout(timeout, cell)
        if not await self._idle():
            self.spent = True
            await self.km.shutdown_kernel(now=True)
            raise DeadKernelError("the kernel cannot be interrupted")
        return reply

    async def _idle(self) -> bool:
        """Whether the kernel answers again soon after it was interrupted."""
        request = self.kc.kernel_info()
        deadline = asyncio.get_running_loop().time() + SECONDS_TO_GIVE_IN
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                answer = await self.kc.get_shell_msg(timeout=left)
            except Exception:  # queue.Empty: nothing came in time
                return False
            if answer["parent_header"].get("msg_id") == request:
                return True
        return False

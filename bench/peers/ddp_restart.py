"""PyTorch DDP on Gloo whose rank is killed: all ranks are restarted from the last checkpoint, as torchrun does it.
Usage: ddp_restart.py OUT CASE RANKS TRIES EVERY: a checkpoint after every EVERY steps; writes a line for each try:
seconds from the kill to the end of the next step, and how many steps were lost.

Without a launcher of its own, so that nothing is waited for that is not needed: whoever starts the ranks sees the death
at once, kills the others and starts all anew."""
import json, os, random, socket, subprocess, sys, tempfile, time


def train(case, checkpoint, every):
    """One rank. The first one says each step that was made, and when, on the machine's steady clock."""
    import torch, torch.distributed as dist, torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel
    from ddp_train import CASES

    make, batch, _ = CASES[case]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    model = make()
    step = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    if step > 0:
        optimizer.load_state_dict(saved["optimizer"])
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    while True:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        step += 1
        if first:
            print(step, time.monotonic(), flush=True)
        if first and step % every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Job:
    def __init__(self, case, ranks, checkpoint, every):
        variables = dict(
            os.environ,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
            WORLD_SIZE=str(ranks),
            OMP_NUM_THREADS="1",
        )
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", case, checkpoint, str(every)],
                env=dict(variables, RANK=str(rank), LOCAL_RANK=str(rank)),
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(ranks)
        ]

    def next_step(self):
        """Its number, and when it was made."""
        line = self.ranks[0].stdout.readline()
        if not line:
            raise RuntimeError("DDP's first rank has ended")
        step, at = line.split()
        return int(step), float(at)

    def end(self):
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.wait()
        self.ranks[0].stdout.close()


def main(out, case, ranks, tries, every):
    choose = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="ddp-restart-") as folder:
        job = Job(case, ranks, os.path.join(folder, "checkpoint.pt"), every)
        try:
            for turn in range(tries):
                begin = None
                for _ in range(every + choose.randrange(every)):  # there is a checkpoint, and some steps after it
                    step, at = job.next_step()
                    begin = begin or (step, at)
                step_ms = (at - begin[1]) / max(1, step - begin[0]) * 1e3
                victim = job.ranks[choose.randrange(ranks)]
                killed = time.monotonic()
                victim.kill()
                victim.wait()
                made = step
                job.end()
                job = Job(case, ranks, os.path.join(folder, "checkpoint.pt"), every)
                step, at = job.next_step()
                row = {
                    "turn": turn,
                    "seconds": at - killed,
                    "steps_lost": made - (step - 1),
                    "step_ms": step_ms,
                }
                with open(out, "a") as file:
                    file.write(json.dumps(row) + "\n")
        finally:
            job.end()


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        train(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))

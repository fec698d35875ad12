import json, os, subprocess, sys, time
import torch, torch.distributed as dist
from torch.profiler import profile, ProfilerActivity

def shares(marks):
    torch.cuda.synchronize()
    spent = {}
    for (name, a), (after, b) in zip(marks, marks[1:]):
        if name != "end":
            spent[name] = spent.get(name, 0.0) + a.elapsed_time(b)
        else:
            spent["between"] = spent.get("between", 0.0) + a.elapsed_time(b)
    whole = sum(spent.values())
    return {name: round(part / whole, 5) for name, part in spent.items()}, whole

def work(rank, world, out, port):
    torch.cuda.set_device(rank)
    if world > 1 or os.environ.get("ONE_NCCL"):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    from sglang.srt.speculative.eagle_worker import EAGLEWorker
    for mode, graph, spans, stack, cycles in (
        ("spans", True, True, False, 8), ("stacks", True, False, True, 8), ("eager", False, False, True, 4), ("long", True, False, True, 150), ("gpuonly", True, True, False, 8),
    ):
        worker = EAGLEWorker(world, 24, 3, graph, spans)
        with torch.no_grad():
            for _ in range(5):
                worker.forward_batch_generation()
            torch.cuda.synchronize()
            if dist.is_initialized():
                dist.barrier()
            worker.marks = []
            for _ in range(30):
                worker.forward_batch_generation()
            timed, whole = shares(worker.marks)
            worker.marks = None
            acts = [ProfilerActivity.CUDA] if mode == "gpuonly" else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
            with profile(activities=acts, with_stack=stack, record_shapes=False) as p:
                for _ in range(cycles):
                    worker.forward_batch_generation()
                torch.cuda.synchronize()
        began = time.time()
        path = f"{out}/{mode}-TP-{rank}.trace.json.gz"
        p.export_chrome_trace(path)
        avg = {e.key: [e.self_device_time_total, e.count] for e in p.key_averages() if e.self_device_time_total and e.device_type == torch.autograd.DeviceType.CUDA}
        top = dict(sorted(avg.items(), key=lambda kv: -kv[1][0])[:25])
        json.dump({"mode": mode, "rank": rank, "timed": timed, "cycle_ms": whole / 30, "export_s": time.time() - began, "averages": top, "size": os.path.getsize(path)}, open(f"{out}/{mode}-{rank}.json", "w"))
        del worker, p
        torch.cuda.empty_cache()
    if dist.is_initialized():
        dist.barrier(); dist.destroy_process_group()

if __name__ == "__main__":
    world, out = int(sys.argv[1]), sys.argv[2]
    os.makedirs(out, exist_ok=True)
    if len(sys.argv) > 3:
        work(int(sys.argv[3]), world, out, 29511)
        sys.exit(0)
    ps = [subprocess.Popen([sys.executable, __file__, str(world), out, str(r)]) for r in range(world)]
    sys.exit(max(p.wait() for p in ps))

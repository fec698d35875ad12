import torch, sys
from torch.profiler import profile, ProfilerActivity, record_function
torch.manual_seed(0); torch.set_num_threads(1)
d, t = torch.nn.Linear(64,64), torch.nn.Sequential(*[torch.nn.Linear(256,256) for _ in range(4)])
def verify(x):
    return t(x)
with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as p:
    for i in range(6):
        with record_function("draft"):
            h = torch.randn(1,64)
            for _ in range(3): h = torch.relu(d(h))
        with record_function("step[VERIFY bs=1]"):
            y = verify(torch.randn(4,256)); q=y.view(1,4,4,64); torch.nn.functional.scaled_dot_product_attention(q,q,q)
        with record_function("draft_extend"):
            h = d(torch.randn(4,64))
        y.softmax(-1).argmax(-1).sum().item()
p.export_chrome_trace(sys.argv[1])

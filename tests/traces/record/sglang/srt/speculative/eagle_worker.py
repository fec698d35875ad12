"""A made-up worker with the file and function names of SGLang 0.5.9, and on request the spans of 0.5.23."""
import contextlib
import torch
import torch.nn.functional as F
import torch.distributed as dist
from torch.profiler import record_function
from sglang.srt.speculative.eagle_info import EagleVerifyInput

H, HEADS, FFN, VOCAB, PAST = 4096, 32, 11008, 32000, 2048


class Layer(torch.nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.heads = HEADS // tp
        width = self.heads * 128
        self.qkv = torch.nn.Linear(H, 3 * width, bias=False)
        self.o = torch.nn.Linear(width, H, bias=False)
        self.up = torch.nn.Linear(H, 2 * FFN // tp, bias=False)
        self.down = torch.nn.Linear(FFN // tp, H, bias=False)
        self.n1 = torch.nn.RMSNorm(H)
        self.n2 = torch.nn.RMSNorm(H)
        self.register_buffer("k", torch.randn(1, self.heads, PAST, 128))
        self.register_buffer("v", torch.randn(1, self.heads, PAST, 128))

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(x.shape[0], 3, self.heads, 128).permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        a = F.scaled_dot_product_attention(q, self.k, self.v)
        y = self.o(a[0].transpose(0, 1).reshape(x.shape[0], -1))
        if dist.is_initialized():
            dist.all_reduce(y)
        x = x + y
        g, u = self.up(self.n2(x)).chunk(2, -1)
        y = self.down(F.silu(g) * u)
        if dist.is_initialized():
            dist.all_reduce(y)
        return x + y


class Model(torch.nn.Module):
    def __init__(self, layers, tp):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(tp) for _ in range(layers))
        self.head = torch.nn.Linear(H, VOCAB, bias=False)
        self.embed = torch.nn.Embedding(VOCAB, H)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Runner:
    """A model on fixed inputs: eager, or one CUDA graph."""

    def __init__(self, model, tokens, graph):
        self.model, self.input = model, torch.zeros(tokens, dtype=torch.long, device="cuda")
        self.graph = None
        if graph:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.model(self.input)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.output = self.model(self.input)

    def replay(self, tokens):
        self.input.copy_(tokens)
        if self.graph is None:
            return self.model(self.input)
        self.graph.replay()
        return self.output


class EAGLEWorker:
    def __init__(self, tp, layers, steps, graph, spans):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            target, draft = Model(layers, tp), Model(1, tp)
        self.steps, self.spans = steps, spans
        self.target = Runner(target, steps + 1, graph)
        self.one = Runner(draft, 1, graph)
        self.more = Runner(draft, steps + 1, graph)
        self.last = torch.zeros(1, dtype=torch.long, device="cuda")
        self.marks = None

    def span(self, name):
        return record_function(name) if self.spans else contextlib.nullcontext()

    def mark(self, name):
        if self.marks is not None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append((name, event))

    def draft(self):
        found = [self.last]
        for _ in range(self.steps):
            found.append(self.one.replay(found[-1]).argmax(-1))
        return torch.cat(found)

    def verify(self, tokens):
        with self.span("step[VERIFY bs=1]"):
            logits = self.target.replay(tokens)
        self.mark("sampling")
        with self.span("sampling"):
            accepted, guessed = EagleVerifyInput(tokens).verify(logits)
        self.mark("target_verify_rest")
        self.last = guessed[accepted : accepted + 1]
        return guessed

    def forward_draft_extend_after_decode(self, guessed):
        self.more.replay(guessed)

    def forward_batch_generation(self):
        self.mark("draft")
        with self.span("draft"):
            tokens = self.draft()
        self.mark("target_verify")
        guessed = self.verify(tokens)
        self.mark("draft_extend")
        with self.span("draft_extend"):
            self.forward_draft_extend_after_decode(guessed)
        self.mark("end")

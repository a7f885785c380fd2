# Measures graphs with PyTorch, each batch captured in a CUDA graph. fp32 is without TF32, channels as they come; in
# fp16 and bf16 parameters, activations and inputs are of that type, images with channels last. Normalisation is folded
# into convolutions, as in our plans. Reads lines "GRAPH PRECISION BATCH" and answers each with the median
# microseconds of a replay. Exit status 3 without torch or without a GPU.
import sys

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit(3)
if not torch.cuda.is_available():
    sys.exit(3)

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True


class Conv(nn.Module):
    def __init__(self, i, o, k, s=1, g=1, act=None):
        super().__init__()
        self.conv = nn.Conv2d(i, o, k, s, (k - 1) // 2, groups=g, bias=True)  # normalisation folded, as ours
        self.act = act

    def forward(self, x):
        x = self.conv(x)
        return self.act(x) if self.act else x


class Bottleneck(nn.Module):
    def __init__(self, i, mid, s, first):
        super().__init__()
        self.a, self.b = Conv(i, mid, 1, act=F.relu), Conv(mid, mid, 3, s, act=F.relu)
        self.c = Conv(mid, 4 * mid, 1)
        self.side = Conv(i, 4 * mid, 1, s) if first else None

    def forward(self, x):
        return F.relu(self.c(self.b(self.a(x))) + (self.side(x) if self.side else x))


def resnet50():
    body, i = [Conv(3, 64, 7, 2, act=F.relu), nn.MaxPool2d(3, 2, 1)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for b in range(blocks):
            body.append(Bottleneck(i, 64 << stage, 2 if b == 0 and stage else 1, b == 0))
            i = 4 * (64 << stage)
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 1000))


class Inverted(nn.Module):
    def __init__(self, i, o, t, s):
        super().__init__()
        mid = i * t
        parts = [Conv(i, mid, 1, act=F.relu6)] if t > 1 else []
        self.body = nn.Sequential(*parts, Conv(mid, mid, 3, s, mid, F.relu6), Conv(mid, o, 1))
        self.add = s == 1 and i == o

    def forward(self, x):
        return x + self.body(x) if self.add else self.body(x)


def mobilenet():
    body, i = [Conv(3, 32, 3, 2, act=F.relu6)], 32
    for t, o, n, s in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for b in range(n):
            body.append(Inverted(i, o, t, s if b == 0 else 1))
            i = o
    return nn.Sequential(*body, Conv(i, 1280, 1, act=F.relu6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Encoder(nn.Module):
    def __init__(self, h=768, heads=12, inner=3072):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(h, h) for _ in range(4))
        self.up, self.down = nn.Linear(h, inner), nn.Linear(inner, h)
        self.n1, self.n2 = nn.LayerNorm(h), nn.LayerNorm(h)

    def forward(self, x, mask):
        b, s, h = x.shape
        q, k, v = (f(x).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, s, h)
        x = self.n1(x + self.o(y))
        return self.n2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self, h=768, seq=128, vocab=30522):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, h), nn.Parameter(torch.randn(seq, h))
        self.norm, self.layers, self.pool = nn.LayerNorm(h), nn.ModuleList(Encoder() for _ in range(12)), nn.Linear(h, h)

    def forward(self, ids, mask):
        m = ((1 - mask.to(self.places.dtype)) * -10000)[:, None, None, :]
        x = self.norm(self.words(ids) + self.places)
        for layer in self.layers:
            x = layer(x, m)
        return torch.tanh(self.pool(x[:, :1]))


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MODELS = {"resnet50": resnet50, "mobilenet": mobilenet, "bert-base": Bert}
ROUNDS, LIMIT_US = 200, 2e6
loaded = {}


def load(graph, precision):
    if (graph, precision) not in loaded:
        loaded.clear()
        model = MODELS[graph]().cuda().eval().to(DTYPES[precision])
        if precision != "fp32" and graph != "bert-base":
            model = model.to(memory_format=torch.channels_last)
        loaded[graph, precision] = model
    return loaded[graph, precision]


def inputs(graph, precision, batch):
    if graph == "bert-base":
        return (torch.randint(0, 30522, (batch, 128), device="cuda"), torch.ones(batch, 128, dtype=torch.long, device="cuda"))
    x = torch.randn(batch, 3, 224, 224, device="cuda").to(DTYPES[precision])
    return (x.to(memory_format=torch.channels_last) if precision != "fp32" else x,)


def measure(graph, precision, batch):
    model, args = load(graph, precision), inputs(graph, precision, batch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(*args)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        model(*args)
    for _ in range(20):
        captured.replay()
    times = []
    while len(times) < ROUNDS and (sum(times) < LIMIT_US or len(times) < 20):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        captured.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1e3)
    return sorted(times)[len(times) // 2]


with torch.inference_mode():
    for line in sys.stdin:
        graph, precision, batch = line.split()
        print(measure(graph, precision, int(batch)), flush=True)
        torch.cuda.empty_cache()

#!/usr/bin/env python3
"""Times PyTorch on the language model that generate.py makes, in fp32, on two threads.

    python prefill.py ROUNDS [--layers 10] [--dim 768] [--vocab 32000] [--tokens 32]

Prints the seconds of each round, one a line. The weights are noise, as in the package: the time does
not depend on them. Needs torch.
"""

import argparse
import time

import torch

HEAD_SIZE = 64
HEADS_PER_KEY = 4


def rotated(x, cos, sin):
    half = HEAD_SIZE // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class Norm(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.randn(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain


class Layer(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.heads, self.keys = dim // HEAD_SIZE, dim // HEAD_SIZE // HEADS_PER_KEY
        narrow, hidden = self.keys * HEAD_SIZE, 4 * dim
        self.norms = torch.nn.ModuleList([Norm(dim), Norm(dim)])
        self.q, self.k = torch.nn.Linear(dim, dim), torch.nn.Linear(dim, narrow)
        self.v, self.o = torch.nn.Linear(dim, narrow), torch.nn.Linear(dim, dim)
        self.gate, self.up = torch.nn.Linear(dim, hidden), torch.nn.Linear(dim, hidden)
        self.down = torch.nn.Linear(hidden, dim)

    def forward(self, x, mask, cos, sin):
        tokens = x.shape[1]
        normed = self.norms[0](x)
        q = self.q(normed).view(1, tokens, self.heads, HEAD_SIZE).transpose(1, 2)
        k = self.k(normed).view(1, tokens, self.keys, HEAD_SIZE).transpose(1, 2)
        v = self.v(normed).view(1, tokens, self.keys, HEAD_SIZE).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = k.repeat_interleave(HEADS_PER_KEY, 1), v.repeat_interleave(HEADS_PER_KEY, 1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / HEAD_SIZE**0.5 + mask, -1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(1, tokens, -1))
        normed = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(normed)) * self.up(normed))


class Model(torch.nn.Module):
    def __init__(self, layers, dim, vocab, tokens):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab, dim)
        self.layers = torch.nn.ModuleList([Layer(dim) for _ in range(layers)])
        self.norm, self.head = Norm(dim), torch.nn.Linear(dim, vocab)
        angles = torch.outer(torch.arange(tokens), 10000.0 ** (-torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE))
        self.cos, self.sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))

    def forward(self, ids, mask):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, mask, self.cos, self.sin)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rounds", type=int)
    for name, default in [("layers", 10), ("dim", 768), ("vocab", 32000), ("tokens", 32)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(2)
    with torch.inference_mode():
        model = Model(options.layers, options.dim, options.vocab, options.tokens).eval()
        ids = torch.randint(options.vocab, (1, options.tokens))
        mask = torch.full((1, 1, options.tokens, options.tokens), -1e4).triu(1)
        model(ids, mask)
        for _ in range(options.rounds):
            start = time.perf_counter()
            model(ids, mask)
            print(time.perf_counter() - start)


if __name__ == "__main__":
    main()

"""Greedy acceptance, under the file and function name that SGLang 0.5.9 has for it."""
import torch


class EagleVerifyInput:
    def __init__(self, tokens):
        self.tokens = tokens

    def verify(self, logits):
        guessed = logits.float().softmax(-1).argmax(-1)
        same = (guessed[:-1] == self.tokens[1:]).long().cumprod(0).sum()
        return int(same.item()), guessed

"""Text to token ids and back.

    protocol.py       what every tokenizer offers: `Tokenizer`
    load.py           a tokenizer of a file
    sentencepiece.py  a sentencepiece model, loaded and checked
    huggingface.py    a Hugging Face tokenizer.json, loaded and checked
    byte_level.py     what the parts of a tokenizer.json say about cutting text and keeping it
    file_kinds.py     what a file is that is no tokenizer
    cuts.py           where text can be cut without changing its ids
    words.py          encoding word by word with a memory
    training.py       train a sentencepiece model that keeps text as it is
    sampling.py       a random part of a corpus, to train on
    loss.py           what of a text does not come back from its tokens, and in how many tokens it comes
    config.py         the [tokenizer] section; rules.py what it may say

The models that `training.py` makes restore every text exactly, with one exception that sentencepiece itself
makes: U+2581, its own sign for a space, comes back as a space. Special pieces (end of document, padding,
unknown) are control pieces: text that spells them never becomes them.
"""

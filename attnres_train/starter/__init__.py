"""A first configuration for a prepared corpus (`attnres init`): sizes and rates by rules that it states.

corpus.py  the pairs and the tokenizer that lie there
shape.py   layers and width of a model of so many parameters
rules.py   batch, steps and learning rate, from published fits
write.py   all of it as a commented TOML file, checked as a launch would
"""

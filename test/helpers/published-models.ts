/** The table of models in docs/token-mode.md: what each publishes, and what its prompts were compared with. */
import { type Comparison, readComparisons } from '../differential/comparisons.ts'
import { FAMILIES } from '../differential/families.ts'

/** Models whose prompts a published encoder writes, by its file. */
const ENCODED: Readonly<Record<string, string>> = {
  'encoding_dsv32.py': 'DeepSeek V3.2',
  'encoding_dsv4.py': 'DeepSeek V4, V4 Flash',
  'encoding_dsv41.py': 'DeepSeek V4.1',
}
/** Families whose templates are ports: the models publish an encoder. */
const PORTED = new Set(['DeepSeek V3.2', 'DeepSeek V4', 'DeepSeek V4 Flash', 'Kimi K3'])
/** Tokenizers other than `tokenizer.json`, by output parser, and what they were compared with. */
const TOKENIZERS: Readonly<Record<string, { file: string; comparedWith: string }>> = {
  kimi_k2: { file: '`tiktoken.model`', comparedWith: 'tiktoken' },
  mistral: { file: '`tokenizer.json` or `tekken.json`', comparedWith: 'mistral-common, its tokenizer only' },
}
/** The encoder of Kimi K3 is in no released package. */
const UNPROVEN =
  '| Kimi K3 | `tiktoken.model`, `encoding_k3.py` | the encoder | `kimi_k3` | not proven ([segments](#segments)) | |'

/** Returns the table, in Markdown: a row for each encoder, and for the template families with one parser. */
export function createModelTable(): string {
  const { templates, encoders } = readComparisons()
  const rows = [
    ...Object.entries(encoders).map(([file, compared]) => encoderRow(file, compared)),
    UNPROVEN,
    ...templateRows(templates),
  ]
  return [
    '| model | published files | prompts by | parser | proven against | prompts |',
    '|---|---|---|---|---|---|',
    ...rows,
  ].join('\n')
}

function encoderRow(file: string, { parser, prompts }: Comparison): string {
  const models = ENCODED[file]
  if (models === undefined) throw new Error(`${file} belongs to no model`)
  const files = `\`tokenizer.json\`, \`encoding/${file}\``
  return `| ${models} | ${files} | the encoder | \`${parser}\` | the encoder in plain Python | ${toCount(prompts)} |`
}

function templateRows(templates: Readonly<Record<string, Comparison>>): string[] {
  const rows = new Map<string, { names: string[]; prompts: number; rest: (prompts: string) => string }>()
  for (const [name, { parser, prompts }] of Object.entries(templates)) {
    if (PORTED.has(name)) continue
    const isHarmony = FAMILIES[name]!.format === 'harmony'
    const { file, comparedWith } = TOKENIZERS[parser] ?? { file: '`tokenizer.json`', comparedWith: undefined }
    const reference = [isHarmony ? 'openai-harmony' : 'transformers', ...(comparedWith ? [comparedWith] : [])]
    const writer = isHarmony ? "harmony's rules" : 'the template'
    const key = `${parser} ${writer}`
    const row = rows.get(key) ?? {
      names: [],
      prompts: 0,
      rest: (sum) => `${file}, template | ${writer} | \`${parser}\` | ${reference.join('; ')} | ${sum}`,
    }
    row.names.push(name)
    row.prompts += prompts
    rows.set(key, row)
  }
  return [...rows.values()].map(
    ({ names, prompts, rest }) => `| ${names.join(', ')} | ${rest(toCount(prompts))} |`,
  )
}

function toCount(number: number): string {
  return number.toLocaleString('en-US')
}

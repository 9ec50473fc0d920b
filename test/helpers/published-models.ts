/** The tables of docs/token-mode.md: what models publish, and what their prompts were compared with. */
import { type Comparison, type EncoderComparison, readComparisons } from '../differential/comparisons.ts'
import { FAMILIES } from '../differential/families.ts'

/** Models whose prompts an encoder writes, by its name in the differential. */
const ENCODED: Readonly<Record<string, string>> = {
  'encoding_dsv32.py': 'DeepSeek V3.2',
  'encoding_dsv4.py': 'DeepSeek V4, V4 Flash',
  'encoding_dsv41.py': 'DeepSeek V4.1',
  'tekken.json, version 3': 'Mistral, version 3',
  'tekken.json, version 7': 'Mistral, version 7',
  'tekken.json, version 11': 'Mistral, version 11',
  'tekken.json, version 13': 'Mistral, version 13',
  'tekken.json, version 15': 'Mistral, version 15',
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
  '| Kimi K3 | `tiktoken.model`, `encoding_k3.py` | the encoder | `kimi_k3` | not proven ([segments](#segments)) | | |'

/** Returns the table, in Markdown: a row for each encoder, and for the template families with one parser. */
export function createModelTable(): string {
  const { templates, encoders } = readComparisons()
  const rows = [
    ...Object.entries(encoders).map(([file, compared]) => createEncoderRow(file, compared)),
    UNPROVEN,
    ...createTemplateRows(templates),
  ]
  return [
    '| model | published files | prompts by | parser | proven against | conversations | prompts |',
    '|---|---|---|---|---|---|---|',
    ...rows,
  ].join('\n')
}

/** Returns the table of prompt encoders, in Markdown. Default: of the last comparisons. */
export function createEncoderTable(encoders = readComparisons().encoders): string {
  return [
    '| encoder | mode | conversations | prompts | equal | rejected by both | turns extended | earlier text rewritten | responses read |',
    '|---|---|---|---|---|---|---|---|---|',
    ...Object.entries(encoders).flatMap(([name, { modes }]) =>
      Object.entries(modes).map(([mode, counts]) => {
        const { conversations, prompts, equal, rejectedByBoth, extended, continued, rewritten, read } = counts
        const turns = `${extended} of ${continued}`
        const numbers = [conversations, prompts, equal, rejectedByBoth, turns, rewritten, read]
        return `| \`${name}\` | ${mode} | ${numbers.join(' | ')} |`
      }),
    ),
  ].join('\n')
}

function createEncoderRow(name: string, { parser, modes }: EncoderComparison): string {
  const models = ENCODED[name]
  if (models === undefined) throw new Error(`${name} belongs to no model`)
  const [files, writer, reference] = name.startsWith('tekken')
    ? ['`tekken.json`', "mistral-common's rules", 'mistral-common']
    : [`\`tokenizer.json\`, \`encoding/${name}\``, 'the encoder', 'the encoder in plain Python']
  const sum = (field: 'conversations' | 'prompts') =>
    toCount(Object.values(modes).reduce((total, counts) => total + counts[field], 0))
  return `| ${models} | ${files} | ${writer} | \`${parser}\` | ${reference} | ${sum('conversations')} | ${sum('prompts')} |`
}

function createTemplateRows(templates: Readonly<Record<string, Comparison>>): string[] {
  interface Row {
    names: string[]
    conversations: number
    prompts: number
    rest: string
  }
  const rows = new Map<string, Row>()
  for (const [name, { parser, conversations, prompts }] of Object.entries(templates)) {
    if (PORTED.has(name)) continue
    const isHarmony = FAMILIES[name]!.format === 'harmony'
    const { file, comparedWith } = TOKENIZERS[parser] ?? { file: '`tokenizer.json`', comparedWith: undefined }
    const reference = [isHarmony ? 'openai-harmony' : 'transformers', ...(comparedWith ? [comparedWith] : [])]
    const writer = isHarmony ? "harmony's rules" : 'the template'
    const key = `${parser} ${writer}`
    const row = rows.get(key) ?? {
      names: [],
      conversations: 0,
      prompts: 0,
      rest: `${file}, template | ${writer} | \`${parser}\` | ${reference.join('; ')}`,
    }
    row.names.push(name)
    row.conversations += conversations
    row.prompts += prompts
    rows.set(key, row)
  }
  return [...rows.values()].map(
    ({ names, conversations, prompts, rest }) =>
      `| ${names.join(', ')} | ${rest} | ${toCount(conversations)} | ${toCount(prompts)} |`,
  )
}

function toCount(number: number): string {
  return number.toLocaleString('en-US')
}

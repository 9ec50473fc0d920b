import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { ERROR_CATALOGUE } from '../../../src/base/errors.ts'
import { COMMANDS } from '../../../src/proxy/config/commands.ts'
import { type CommandSpec, envNames, fileKeys, type OptionSpec } from '../../../src/proxy/config/option.ts'
import { OWN_ROLLOUTS, REMOTE_AGENT } from '../../../src/proxy/config/options/rollout.ts'
import { generatedSection } from '../../helpers/generated-text.ts'

const DOCS = join(import.meta.dirname, '../../../docs')

function optionRow(command: CommandSpec, option: OptionSpec): string {
  const env = envNames(command, option).map((name) => `\`${name}\``)
  const [key] = fileKeys(option)
  const hasFile = Object.values(command.options).some(({ flag }) => flag === 'config')
  const cells = [
    `\`--${option.flag}\``,
    env.join(', '),
    key === undefined || !hasFile ? '' : `\`${key}\``,
    typeOf(option),
    option.default === undefined ? '' : `\`${option.default}\``,
    option.help.replaceAll('|', '\\|'),
  ]
  return `| ${cells.join(' | ')} |`.replaceAll('|  |', '| |')
}

function typeOf(option: OptionSpec): string {
  if (option.type === 'enum') return option.values.map((value) => `\`${value}\``).join(', ')
  return option.type === 'socketUrl' || option.type === 'dialUrl' ? 'url' : option.type
}

/** Which command has a row first: each option is described once. */
const firstWith = new Map<string, CommandSpec>()
for (const command of COMMANDS)
  for (const option of optionsOf(command)) {
    const row = optionRow(command, option)
    if (!firstWith.has(row)) firstWith.set(row, command)
  }

/** Of rollouts that a proxy runs itself, those of the command that is there for them are described. */
function optionsOf({ name, options }: CommandSpec): OptionSpec[] {
  const isElsewhere = (key: string) => name !== 'rollout' && key !== 'runner' && key in OWN_ROLLOUTS
  return Object.entries<OptionSpec>(options).flatMap(([key, option]) => (isElsewhere(key) ? [] : [option]))
}

/** The options that a command has alone, and the names of those that it shares with ones before it. */
function tableOf(command: CommandSpec): string {
  const own: string[] = []
  const shared = new Map<CommandSpec, string[]>()
  for (const option of optionsOf(command)) {
    const row = optionRow(command, option)
    const first = firstWith.get(row)!
    if (first === command) own.push(row)
    else shared.set(first, [...(shared.get(first) ?? []), `\`--${option.flag}\``])
  }
  const head = ['| flag | environment | file | type | default | |', '|---|---|---|---|---|---|']
  const parts = [...shared].map(([first, flags]) => {
    const link = `[llm-proxy ${first.name}](#llm-proxy-${first.name.replaceAll(' ', '-')})`
    return `${flags.length === optionsOf(first).length ? 'all options' : flags.join(', ')} of ${link}`
  })
  const sentences = parts.length > 0 ? [`With ${parts.join('; ')}.`] : []
  return [...sentences, ...(own.length > 0 ? [[...head, ...own].join('\n')] : [])].join('\n\n')
}

for (const command of COMMANDS) {
  t.test(
    `docs/configuration.md has the options of ${command.name} (UPDATE=1 writes them anew)`,
    async (t) => {
      const table = tableOf(command)
      t.equal(generatedSection(join(DOCS, 'configuration.md'), `options of ${command.name}`, table), table)
    },
  )
}

t.test('docs/rollouts.md has what a RemoteAgentLoop reads (UPDATE=1 writes it anew)', async (t) => {
  const rows = Object.entries(REMOTE_AGENT.options).map(([key, option]) => remoteAgentRow(key, option))
  const table = ['| option | environment | default | |', '|---|---|---|---|', ...rows].join('\n')
  t.equal(generatedSection(join(DOCS, 'rollouts.md'), 'options of a RemoteAgentLoop', table), table)
})

function remoteAgentRow(key: string, option: OptionSpec): string {
  // The name that trainers know comes first.
  const env = envNames(REMOTE_AGENT, option)
    .reverse()
    .map((name) => `\`${name}\``)
  const fallback = option.default === undefined ? '' : `\`${option.default}\``
  return `| \`${key}\` | ${env.join(', ')} | ${fallback} | ${option.help} |`.replaceAll('|  |', '| |')
}

t.test(
  'docs/errors.md has every error code with its status and log level, in the order of the catalogue',
  async (t) => {
    const text = readFileSync(join(DOCS, 'errors.md'), 'utf8')
    const documented = [...text.matchAll(/^\| `(\w+)` \| (\d+) \| (\w+) \| (.+) \|$/gm)]
    const catalogue = Object.entries(ERROR_CATALOGUE).map(([code, { status, log }]) => [
      code,
      String(status),
      log,
    ])
    t.strictSame(
      documented.map(([, code, status, log]) => [code, status, log]),
      catalogue,
    )
  },
)

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { ERROR_CATALOGUE } from '../../../../src/base/errors.ts'
import { COMMANDS } from '../../../../src/commands.ts'
import { type CommandSpec, listEnvNames, type OptionSpec } from '../../../../src/proxy/config/option.ts'
import { OPERATOR_COMMANDS } from '../../../../src/proxy/config/options/operator.ts'
import { OWN_ROLLOUTS, REMOTE_AGENT, ROLLOUT } from '../../../../src/rollout/options.ts'
import { RolloutRequest } from '../../../../src/rollout/server/request.ts'
import { generatedSection } from '../../../helpers/generated-text.ts'

const DOCS = join(import.meta.dirname, '../../../../docs')

/**
 * Returns the table row of an option: the flag, with a star if it has no other name; type and default; its
 * help, and names that do not follow from it.
 */
function optionRow(command: CommandSpec, option: OptionSpec): string {
  const [own, ...others] = listEnvNames(command, option)
  const names = others.map((name) => `\`${name}\``).join(', ')
  const mark = own === undefined ? '\\*' : ''
  const remark = names === '' ? '' : ` (also ${names})`
  const isOff = option.type === 'boolean' && option.default === 'false'
  const value = [getType(option), option.default === undefined || isOff ? '' : `\`${option.default}\``]
  const help = option.help.replace(STATED_ABOVE, '').replaceAll('|', '\\|')
  return `| \`--${option.flag}\`${mark} ${value.filter((part) => part !== '').join(': ')} | ${help}${remark} |`
}

/** Statements that the page makes once about a type, for all options that have it. */
const STATED_ABOVE = /[;,] (?:may be given several times|given like --admin-key|@file reads it from a file)/g

const TYPES: Partial<Record<OptionSpec['type'], string>> = {
  basePath: 'path',
  boolean: 'switch',
  bytes: 'size',
  dialUrl: 'url',
  socketUrl: 'url',
}

function getType(option: OptionSpec): string {
  if (option.type === 'enum') return option.values.map((value) => `\`${value}\``).join(', ')
  const type = TYPES[option.type] ?? option.type
  return option.repeatable && option.type !== 'key' ? `list of ${type}` : type
}

/** The command that documents a row first: each option is described once. */
const firstCommands = new Map<string, CommandSpec>()
for (const command of COMMANDS)
  for (const option of getOptions(command)) {
    const row = optionRow(command, option)
    if (!firstCommands.has(row)) firstCommands.set(row, command)
  }

/** Returns the options of a command. Only `rollout` lists those of rollouts that a proxy runs itself. */
function getOptions({ name, options }: CommandSpec): OptionSpec[] {
  const isElsewhere = (key: string) => name !== 'rollout' && key !== 'runner' && key in OWN_ROLLOUTS
  return Object.entries<OptionSpec>(options).flatMap(([key, option]) => (isElsewhere(key) ? [] : [option]))
}

/**
 * Returns the table of the options that only this command has, and the names of those that it shares with
 * earlier ones.
 */
function getTable(command: CommandSpec): string {
  const own: string[] = []
  const shared = new Map<CommandSpec, string[]>()
  const full = COMMANDS.slice(0, COMMANDS.indexOf(command as (typeof COMMANDS)[number]))
    .filter((other) => getRows(other).length > 1 && isSubset(getRows(other), getRows(command)))
    .sort((a, b) => getRows(b).length - getRows(a).length)[0]
  for (const option of getOptions(command)) {
    const row = optionRow(command, option)
    const first = full !== undefined && getRows(full).includes(row) ? full : firstCommands.get(row)!
    if (first === command) own.push(row)
    else shared.set(first, [...(shared.get(first) ?? []), `\`--${option.flag}\``])
  }
  const head = ['| flag, type: default | |', '|---|---|']
  const parts = [...shared].map(([first, flags]) => {
    const link = `[${first.name}](#llm-proxy-${first.name.replaceAll(' ', '-')})`
    return `${link}'s ${flags.length === getOptions(first).length ? 'options' : flags.join(', ')}`
  })
  const sentences = parts.length > 0 ? [wrapLines(`Also ${parts.join('; ')}.`, 120)] : []
  return [...sentences, ...(own.length > 0 ? [[...head, ...own].join('\n')] : [])].join('\n\n')
}

const isOperators = (command: CommandSpec) => OPERATOR_COMMANDS.some(({ name }) => name === command.name)

const getRows = (command: CommandSpec) => getOptions(command).map((option) => optionRow(command, option))

const isSubset = (some: string[], all: string[]) => some.every((row) => all.includes(row))

for (const command of COMMANDS.filter((one) => !isOperators(one))) {
  t.test(`docs/configuration.md has the options of ${command.name} (UPDATE=1 writes them)`, async (t) => {
    const table = getTable(command)
    t.equal(generatedSection(join(DOCS, 'configuration.md'), `options of ${command.name}`, table), table)
  })
}

/** Properties that all commands for a running proxy share, which the page states once. */
const CLIENT_FLAGS = ['url', 'admin-key', 'tls-ca', 'json']

t.test('docs/configuration.md has the commands for a running proxy (UPDATE=1 writes them)', async (t) => {
  const rows = OPERATOR_COMMANDS.map((command) => {
    const options = getOptions(command)
    const flags = options.map(({ flag }) => flag)
    for (const flag of CLIENT_FLAGS) t.ok(flags.includes(flag), `${command.name} has --${flag}`)
    const own = options.filter(({ flag }) => !CLIENT_FLAGS.includes(flag))
    const descriptions = own.map((option) =>
      optionRow(command, option).slice(2, -2).replace('\\*', '').replace(' | ', ': '),
    )
    return `| \`${command.name}\` | ${command.summary} | ${descriptions.join('. ')} |`.replaceAll(
      '|  |',
      '| |',
    )
  })
  const table = ['| command | does | its own options |', '|---|---|---|', ...rows].join('\n')
  const section = generatedSection(join(DOCS, 'configuration.md'), 'commands for a running proxy', table)
  t.equal(section, table)
})

t.test('docs/rollouts.md has the options of a RemoteAgentLoop (UPDATE=1 writes them)', async (t) => {
  const options = Object.entries<OptionSpec>(REMOTE_AGENT.options)
  for (const [key, option] of options)
    t.equal(OWN_FLAGS.get(option.flag), option, `${key} is a flag of rollout`)
  const getFlag = (key: string) =>
    key.replace(/Ms$/, '').replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)
  const names = options
    .map(([key, { flag }]) => (getFlag(key) === flag ? `\`${key}\`` : `\`${key}\` (\`--${flag}\`)`))
    .join(', ')
  const text = wrapLines(`${names}.`, 120)
  t.equal(generatedSection(join(DOCS, 'rollouts.md'), 'options of a RemoteAgentLoop', text), text)
})

t.test('docs/rollouts.md names every field of a rollout request', async (t) => {
  const page = readFileSync(join(DOCS, 'rollouts.md'), 'utf8')
  const section = /^## As a server\n.*?(?=^## )/ms.exec(page)?.[0] ?? ''
  const names = Object.keys(RolloutRequest.properties)
  t.strictSame(
    names.filter((name) => !new RegExp(`[\`"]${name}[\`"]`).test(section)),
    [],
  )
})

/** Options of the command that runs rollouts, described in its table. */
const OWN_FLAGS = new Map(Object.values<OptionSpec>(ROLLOUT.options).map((option) => [option.flag, option]))

function wrapLines(text: string, width: number): string {
  const lines = ['']
  for (const part of text.split(/(?<=[,;]) /)) {
    const line = [lines.at(-1), part].filter((chunk) => chunk !== '').join(' ')
    if (line.length <= width) lines[lines.length - 1] = line
    else lines.push(part)
  }
  return lines.join('\n')
}

t.test(
  'docs/errors.md has every error code with its status and log level, in the order of the catalogue',
  async (t) => {
    const text = readFileSync(join(DOCS, 'errors.md'), 'utf8')
    const documented = [...text.matchAll(/^\| `(\w+)` \| (\d+) (\w+) \| (.+) \|$/gm)]
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

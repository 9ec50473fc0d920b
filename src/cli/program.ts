/** The command line, built from the option tables. */
import { Command, Option } from 'commander'
import { COMMANDS, DOCTOR, SERVE_COMMAND } from '../commands.ts'
import { type Env, type Flags, loadConfig, rejectUnknownEnv } from '../proxy/config/load.ts'
import {
  type CommandConfig,
  type CommandSpec,
  getFlags,
  listEnvNames,
  type OptionSpec,
} from '../proxy/config/option.ts'
import { BACKUP } from '../proxy/config/options/backup.ts'
import { HEALTH } from '../proxy/config/options/health.ts'
import {
  CHAT,
  PAUSE,
  RESUME,
  SESSIONS_ABORT,
  SESSIONS_COMPLETE,
  SESSIONS_DELETE,
  SESSIONS_REWARD,
  SESSIONS_TAIL,
  WEIGHTS_SET,
  WORKERS_LIST,
} from '../proxy/config/options/operator.ts'
import {
  SESSIONS_GREP,
  SESSIONS_IMPORT,
  SESSIONS_LIST,
  SESSIONS_SHOW,
} from '../proxy/config/options/sessions.ts'
import { VERIFY } from '../proxy/config/options/verify.ts'
import { WORKER } from '../proxy/config/options/worker.ts'

const HELP_WIDTH = 100

/** The descriptions of the groups of commands. */
const GROUPS: Readonly<Record<string, string>> = {
  sessions: 'Read recorded sessions, export, import, reward, end or remove them',
  dataset: 'Create data sets of tasks',
  workers: 'List engines or workers',
  weights: 'Set the weight version',
}

/** A function that runs a command and resolves to the exit code. */
type CommandRun<C extends CommandSpec> = (config: CommandConfig<C>, args: string[]) => Promise<number>

/**
 * The functions that add commands to the program. The code of a command is loaded when it runs: `--version` does not
 * load the server.
 */
export interface CommandRegistry {
  /** @param args the arguments in the form of help: `<session-id>` */
  add<C extends CommandSpec>(spec: C, load: () => Promise<{ run: CommandRun<C> }>, args?: string): void
  /** Adds a command without options, which help does not list. @param usage its name and its argument */
  addHidden(
    usage: string,
    description: string,
    load: () => Promise<{ run(argument?: string): Promise<number> }>,
  ): void
}

/**
 * Builds the program.
 * @param addProductCommands adds the commands of the products that the program includes
 * @param onExit receives the exit code of the command that ran
 * @returns the program; parsing throws CommanderError for an invalid command line
 */
export function buildProgram(
  version: string,
  env: Env,
  addProductCommands: (registry: CommandRegistry) => void,
  onExit: (code: number) => void,
): Command {
  const program = new Command('llm-proxy')
    .description(
      'A proxy between LLM agents and inference engines that records every request token by token, for RL training.',
    )
    .version(version, '-V, --version', 'Print the version')
    .helpCommand('help [command]', 'Print the help of a command')
    .addHelpText('after', '\nOptions of a command: llm-proxy <command> --help')
  configure(program)

  const groups = new Map<string, Command>()
  const findParent = (name: string): Command => {
    const [group, command] = name.split(' ')
    if (command === undefined) return program
    const parent =
      groups.get(group!) ?? configure(program.command(group!)).description(GROUPS[group!]!).helpCommand(false)
    groups.set(group!, parent)
    return parent
  }
  const registry: CommandRegistry = {
    add(spec, load, args = '') {
      const name = spec.name.split(' ').at(-1)
      const command = configure(findParent(spec.name).command(`${name} ${args}`)).description(spec.summary)
      const keys = addOptions(command, spec)
      command.action(async () => {
        rejectUnknownEnv(COMMANDS, env)
        const config = loadConfig(spec, collectFlags(command, keys), env)
        const { run } = await load()
        onExit(await run(config, command.args))
      })
    },
    addHidden(usage, description, load) {
      configure(program.command(usage, { hidden: true }))
        .description(description)
        .action(async (argument?: string) => {
          const { run } = await load()
          onExit(await run(argument))
        })
    },
  }
  addProxyCommands(registry)
  addProductCommands(registry)
  return program
}

/** Adds the commands that need no product besides the proxy and the worker. */
function addProxyCommands({ add }: CommandRegistry): void {
  add(SERVE_COMMAND, () => import('./serve.ts'))
  add(SESSIONS_LIST, () => import('./sessions/list.ts'))
  add(SESSIONS_GREP, () => import('./sessions/grep.ts'), '<text>')
  add(SESSIONS_SHOW, () => import('./sessions/show.ts'), '<session-id>')
  add(SESSIONS_IMPORT, () => import('./sessions/import.ts'), '<database>')
  add(SESSIONS_TAIL, () => import('./sessions/tail.ts'))
  add(SESSIONS_REWARD, () => import('./sessions/reward.ts'), '<session-id> <reward>')
  const ends = () => import('./sessions/end.ts')
  add(SESSIONS_COMPLETE, async () => ({ run: (await ends()).complete }), '<session-id...>')
  add(SESSIONS_ABORT, async () => ({ run: (await ends()).abort }), '<session-id...>')
  add(SESSIONS_DELETE, async () => ({ run: (await ends()).remove }), '<session-id...>')
  add(BACKUP, () => import('./backup.ts'), '<file>')
  add(WORKER, () => import('./worker.ts'))
  add(VERIFY, () => import('./verify/run.ts'), '[session-id...]')
  add(WORKERS_LIST, () => import('./workers.ts'))
  const scheduling = () => import('./scheduling.ts')
  add(PAUSE, async () => ({ run: (await scheduling()).pause }))
  add(RESUME, async () => ({ run: (await scheduling()).resume }))
  add(WEIGHTS_SET, async () => ({ run: (await scheduling()).setWeights }), '<version>')
  add(CHAT, () => import('./chat.ts'), '[message]')
  add(DOCTOR, () => import('./doctor/run.ts'))
  add(HEALTH, () => import('./health.ts'))
}

/** Configures a command to throw on invalid command lines and print nothing: `fail.ts` prints the error. */
function configure(command: Command): Command {
  return command
    .addHelpText('beforeAll', ({ command }) => rejectUnknownCommand(command))
    .helpOption('-h, --help', 'Print this help')
    .exitOverride()
    .allowExcessArguments(false)
    .configureOutput({
      outputError: () => {},
      getOutHelpWidth: () => computeHelpWidth(process.stdout.columns),
    })
}

/** Rejects an unknown command. For `llm-proxy sesions --help`, Commander would print the help of the parent. */
function rejectUnknownCommand(command: Command): string {
  const [name] = command.args[0] === 'help' ? command.args.slice(1) : command.args
  const isKnown =
    name === undefined || name.startsWith('-') || command.commands.some((each) => each.name() === name)
  if (command.commands.length > 0 && !isKnown) command.parse([name], { from: 'user' })
  return ''
}

function computeHelpWidth(columns: number | undefined): number {
  return Math.min(columns ?? HELP_WIDTH, HELP_WIDTH)
}

/** Adds the options of a command. @returns the option keys by the names under which commander stores their values */
function addOptions(command: Command, spec: CommandSpec): Map<string, string> {
  const keys = new Map<string, string>()
  const hidden: Option[] = []
  for (const [key, entry] of Object.entries(spec.options)) {
    for (const [index, flag] of getFlags(entry).entries()) {
      const [option, ...opposite] = toCommanderOptions(spec, { ...entry, flag })
      if (entry.hidden && index === 0) hidden.push(option)
      for (const each of [option, ...opposite]) {
        command.addOption(each.hideHelp(each.hidden || entry.hidden || index > 0))
        keys.set(each.attributeName(), key)
      }
    }
  }
  if (hidden.length > 0) addHelpForAll(command, hidden)
  return keys
}

function addHelpForAll(command: Command, hidden: readonly Option[]): void {
  command.option('--help-all', 'Print the help with all options')
  command.on('option:help-all', () => {
    for (const option of hidden) option.hideHelp(false)
    command.help()
  })
}

function toCommanderOptions(spec: CommandSpec, entry: OptionSpec): [Option, ...Option[]] {
  const description = describe(spec, entry)
  const group = `${entry.group}:`
  if (entry.type === 'boolean') {
    const flags = entry.short === undefined ? `--${entry.flag}` : `-${entry.short}, --${entry.flag}`
    const positive = new Option(flags, description).helpGroup(group)
    return [positive, new Option(`--no-${entry.flag}`).helpGroup(group).hideHelp()]
  }
  const option = new Option(`--${entry.flag} <${formatPlaceholder(entry)}>`, description).helpGroup(group)
  if (entry.repeatable) {
    option.argParser((text: string, before: string[] | undefined) => [...(before ?? []), text])
  }
  return [option]
}

function formatPlaceholder(entry: OptionSpec): string {
  switch (entry.type) {
    case 'path':
      return 'file'
    case 'basePath':
      return 'path'
    case 'bytes':
      return 'size'
    case 'socketUrl':
    case 'dialUrl':
      return 'url'
    case 'integer':
    case 'number':
      return 'n'
    case 'enum':
      return entry.values.length > 3 ? entry.flag.split('-').at(-1)! : entry.values.join('|')
    default:
      return entry.type
  }
}

/** Returns the help of an option, followed by its values, the environment variable and the default. */
function describe(spec: CommandSpec, entry: OptionSpec): string {
  const notes: string[] = []
  if (entry.type === 'enum' && entry.values.length > 3) notes.push(entry.values.join(', '))
  if (entry.type === 'boolean' && !entry.flagOnly) notes.push(`--no-${entry.flag} for the opposite`)
  if (entry.default !== undefined && entry.type !== 'boolean') notes.push(`default ${entry.default}`)
  const env = listEnvNames(spec, entry)
  if (env.length > 0) notes.push(`env ${env.join(', ')}`)
  return notes.length === 0 ? entry.help : `${entry.help} (${notes.join('; ')})`
}

function collectFlags(command: Command, keys: ReadonlyMap<string, string>): Flags {
  const values = command.opts<Flags>()
  const options = [...keys].filter(([name]) => values[name] !== undefined)
  return Object.fromEntries(options.map(([name, key]) => [key, values[name]]))
}

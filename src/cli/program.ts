/** The command line, built from the option tables. */
import { Command, Option } from 'commander'
import { COMMANDS, DOCTOR, SERVE_COMMAND } from '../commands.ts'
import { type Env, type Flags, loadConfig, rejectUnknownEnv } from '../proxy/config/load.ts'
import {
  type CommandSpec,
  type ConfigOf,
  envNames,
  getFlags,
  type OptionSpec,
} from '../proxy/config/option.ts'
import { BACKUP } from '../proxy/config/options/backup.ts'
import { DATASET_HARBOR } from '../proxy/config/options/dataset.ts'
import { DEMO } from '../proxy/config/options/demo.ts'
import { ENGINE } from '../proxy/config/options/engine.ts'
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
  SESSIONS_EXPORT,
  SESSIONS_GREP,
  SESSIONS_IMPORT,
  SESSIONS_LIST,
  SESSIONS_SHOW,
} from '../proxy/config/options/sessions.ts'
import { VERIFY } from '../proxy/config/options/verify.ts'
import { VIEW } from '../proxy/config/options/view.ts'
import { WORKER } from '../proxy/config/options/worker.ts'
import { ROLLOUT } from '../rollout/options.ts'

const HELP_WIDTH = 100

/** Runs a command and resolves to the exit code. */
type Run<C extends CommandSpec> = (config: ConfigOf<C>, args: string[]) => Promise<number>

/**
 * Builds the program.
 * @param onExit receives the exit code of the command that ran
 * @returns the program; parsing throws CommanderError for an invalid command line
 */
export function buildProgram(version: string, env: Env, onExit: (code: number) => void): Command {
  const program = new Command('llm-proxy')
    .description(
      'A proxy between LLM agents and inference engines that records every call token by token, for RL training.',
    )
    .version(version, '-V, --version', 'Print the version')
    .helpCommand('help [command]', 'Print the help of a command')
    .addHelpText('after', '\nOptions of a command: llm-proxy <command> --help')
  configure(program)

  // The code of a command is loaded when it runs, so that `--version` does not load the server.
  const add = <C extends CommandSpec>(
    parent: Command,
    spec: C,
    load: () => Promise<{ run: Run<C> }>,
    args = '',
  ) => {
    const name = spec.name.split(' ').at(-1)
    const command = configure(parent.command(`${name} ${args}`)).description(spec.summary)
    const keys = addOptions(command, spec)
    command.action(async () => {
      rejectUnknownEnv(COMMANDS, env)
      const config = loadConfig(spec, collectFlags(command, keys), env)
      const { run } = await load()
      onExit(await run(config, command.args))
    })
  }

  const group = (name: string, description: string) =>
    configure(program.command(name)).description(description).helpCommand(false)

  add(program, SERVE_COMMAND, () => import('./serve.ts'))
  const sessions = group('sessions', 'Read recorded sessions, export, import, reward, end or remove them')
  add(sessions, SESSIONS_LIST, () => import('./sessions/list.ts'))
  add(sessions, SESSIONS_GREP, () => import('./sessions/grep.ts'), '<text>')
  add(sessions, SESSIONS_SHOW, () => import('./sessions/show.ts'), '<session-id>')
  add(sessions, SESSIONS_EXPORT, () => import('./sessions/export.ts'), '[session-id...]')
  add(sessions, SESSIONS_IMPORT, () => import('./sessions/import.ts'), '<database>')
  add(sessions, SESSIONS_TAIL, () => import('./sessions/tail.ts'))
  add(sessions, SESSIONS_REWARD, () => import('./sessions/reward.ts'), '<session-id> <reward>')
  const ends = () => import('./sessions/end.ts')
  add(sessions, SESSIONS_COMPLETE, async () => ({ run: (await ends()).complete }), '<session-id...>')
  add(sessions, SESSIONS_ABORT, async () => ({ run: (await ends()).abort }), '<session-id...>')
  add(sessions, SESSIONS_DELETE, async () => ({ run: (await ends()).remove }), '<session-id...>')
  add(program, BACKUP, () => import('./backup.ts'), '<file>')
  add(program, VIEW, () => import('./view/run.ts'))
  add(program, WORKER, () => import('./worker.ts'))
  add(program, ROLLOUT, () => import('./rollout/run.ts'))
  add(program, VERIFY, () => import('./verify/run.ts'), '[session-id...]')
  add(program, ENGINE, () => import('./engine.ts'))
  const dataset = group('dataset', 'Make data sets of tasks')
  add(dataset, DATASET_HARBOR, () => import('./dataset/harbor.ts'))
  const workers = group('workers', 'List engines or workers')
  add(workers, WORKERS_LIST, () => import('./workers.ts'))
  const scheduling = () => import('./scheduling.ts')
  add(program, PAUSE, async () => ({ run: (await scheduling()).pause }))
  add(program, RESUME, async () => ({ run: (await scheduling()).resume }))
  const weights = group('weights', 'Set the weight version')
  add(weights, WEIGHTS_SET, async () => ({ run: (await scheduling()).setWeights }), '<version>')
  add(program, CHAT, () => import('./chat.ts'), '[message]')
  add(program, DOCTOR, () => import('./doctor/run.ts'))
  add(program, HEALTH, () => import('./health.ts'))
  add(program, DEMO, () => import('./demo/run.ts'))
  // The demo starts this command, because the standalone executable has no other program available.
  configure(program.command('demo-agent [question]', { hidden: true }))
    .description('Answer a question (or TASK_PROMPT) with a calculator; OPENAI_BASE_URL names the model')
    .action(async (question?: string) => {
      const { run } = await import('./demo/agent.ts')
      onExit(await run(question))
    })
  return program
}

/** Configures a command to throw on invalid command lines and print nothing: `fail.ts` prints the error. */
function configure(command: Command): Command {
  return command
    .addHelpText('beforeAll', ({ command }) => rejectUnknownCommand(command))
    .helpOption('-h, --help', 'Print this help')
    .exitOverride()
    .allowExcessArguments(false)
    .configureOutput({ outputError: () => {}, getOutHelpWidth: () => helpWidth(process.stdout.columns) })
}

/** Rejects an unknown command. For `llm-proxy sesions --help`, Commander would print the help of the parent. */
function rejectUnknownCommand(command: Command): string {
  const [name] = command.args[0] === 'help' ? command.args.slice(1) : command.args
  const isKnown =
    name === undefined || name.startsWith('-') || command.commands.some((each) => each.name() === name)
  if (command.commands.length > 0 && !isKnown) command.parse([name], { from: 'user' })
  return ''
}

function helpWidth(columns: number | undefined): number {
  return Math.min(columns ?? HELP_WIDTH, HELP_WIDTH)
}

/** Adds the options of a command. @returns the option keys by the names under which commander stores their values */
function addOptions(command: Command, spec: CommandSpec): Map<string, string> {
  const keys = new Map<string, string>()
  const hidden: Option[] = []
  for (const [key, entry] of Object.entries(spec.options)) {
    for (const [place, flag] of getFlags(entry).entries()) {
      const [option, ...opposite] = commanderOptions(spec, { ...entry, flag })
      if (entry.hidden && place === 0) hidden.push(option)
      for (const each of [option, ...opposite]) {
        command.addOption(each.hideHelp(each.hidden || entry.hidden || place > 0))
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

function commanderOptions(spec: CommandSpec, entry: OptionSpec): [Option, ...Option[]] {
  const description = describe(spec, entry)
  const group = `${entry.group}:`
  if (entry.type === 'boolean') {
    const flags = entry.short === undefined ? `--${entry.flag}` : `-${entry.short}, --${entry.flag}`
    const positive = new Option(flags, description).helpGroup(group)
    return [positive, new Option(`--no-${entry.flag}`).helpGroup(group).hideHelp()]
  }
  const option = new Option(`--${entry.flag} <${placeholder(entry)}>`, description).helpGroup(group)
  if (entry.repeatable) {
    option.argParser((text: string, before: string[] | undefined) => [...(before ?? []), text])
  }
  return [option]
}

function placeholder(entry: OptionSpec): string {
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
  const env = envNames(spec, entry)
  if (env.length > 0) notes.push(`env ${env.join(', ')}`)
  return notes.length === 0 ? entry.help : `${entry.help} (${notes.join('; ')})`
}

function collectFlags(command: Command, keys: ReadonlyMap<string, string>): Flags {
  const values = command.opts<Flags>()
  const given = [...keys].filter(([name]) => values[name] !== undefined)
  return Object.fromEntries(given.map(([name, key]) => [key, values[name]]))
}

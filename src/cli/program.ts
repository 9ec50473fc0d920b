/** The command line, built from the option tables. */
import { Command, Option } from 'commander'
import { COMMANDS } from '../proxy/config/commands.ts'
import { type Env, type Flags, loadConfig, refuseUnknownEnv } from '../proxy/config/load.ts'
import {
  type CommandSpec,
  type ConfigOf,
  envNames,
  flagsOf,
  type OptionSpec,
} from '../proxy/config/option.ts'
import { DATASET_HARBOR } from '../proxy/config/options/dataset.ts'
import { DEMO } from '../proxy/config/options/demo.ts'
import { DOCTOR } from '../proxy/config/options/doctor.ts'
import { ENGINE } from '../proxy/config/options/engine.ts'
import { HEALTH } from '../proxy/config/options/health.ts'
import {
  CHAT,
  PAUSE,
  RESUME,
  SESSIONS_ABORT,
  SESSIONS_DELETE,
  SESSIONS_TAIL,
  WEIGHTS_SET,
  WORKERS_LIST,
} from '../proxy/config/options/operator.ts'
import { ROLLOUT } from '../proxy/config/options/rollout.ts'
import { SERVE } from '../proxy/config/options/serve.ts'
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

const HELP_WIDTH = 100

/** Does a command's work and resolves to the exit code. */
type Run<C extends CommandSpec> = (config: ConfigOf<C>, args: string[]) => Promise<number>

/**
 * @param onExit gets the exit code of the command that ran
 * @returns the program; parsing throws CommanderError for a wrong command line
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

  // A command's own code is loaded when it runs: `--version` must not pay for the server.
  const add = <C extends CommandSpec>(
    parent: Command,
    spec: C,
    usage: string,
    load: () => Promise<Run<C>>,
  ) => {
    const command = configure(parent.command(usage)).description(spec.summary)
    const keys = addOptions(command, spec)
    command.action(async () => {
      refuseUnknownEnv(COMMANDS, env)
      const config = loadConfig(spec, collectFlags(command, keys), env)
      const run = await load()
      onExit(await run(config, command.args))
    })
  }

  add(program, SERVE, 'serve', async () => (await import('./serve.ts')).run)
  const sessions = configure(program.command('sessions'))
    .description('Read recorded sessions, export, import, end or remove them')
    .helpCommand(false)
  add(sessions, SESSIONS_LIST, 'list', async () => (await import('./sessions/list.ts')).run)
  add(sessions, SESSIONS_GREP, 'grep <text>', async () => (await import('./sessions/grep.ts')).run)
  add(sessions, SESSIONS_SHOW, 'show <session-id>', async () => (await import('./sessions/show.ts')).run)
  add(
    sessions,
    SESSIONS_EXPORT,
    'export [session-id...]',
    async () => (await import('./sessions/export.ts')).run,
  )
  add(sessions, SESSIONS_IMPORT, 'import <database>', async () => (await import('./sessions/import.ts')).run)
  add(sessions, SESSIONS_TAIL, 'tail', async () => (await import('./sessions/tail.ts')).run)
  const ends = async () => await import('./sessions/end.ts')
  add(sessions, SESSIONS_ABORT, 'abort <session-id...>', async () => (await ends()).abort)
  add(sessions, SESSIONS_DELETE, 'delete <session-id...>', async () => (await ends()).remove)
  add(program, VIEW, 'view', async () => (await import('./view/run.ts')).run)
  add(program, WORKER, 'worker', async () => (await import('./worker.ts')).run)
  add(program, ROLLOUT, 'rollout', async () => (await import('./rollout/run.ts')).run)
  add(program, VERIFY, 'verify [session-id...]', async () => (await import('./verify/run.ts')).run)
  add(program, ENGINE, 'engine', async () => (await import('./engine.ts')).run)
  const dataset = configure(program.command('dataset'))
    .description('Make data sets of tasks')
    .helpCommand(false)
  add(dataset, DATASET_HARBOR, 'harbor', async () => (await import('./dataset/harbor.ts')).run)
  const workers = configure(program.command('workers'))
    .description('List engines or workers')
    .helpCommand(false)
  add(workers, WORKERS_LIST, 'list', async () => (await import('./workers.ts')).run)
  const scheduling = async () => await import('./scheduling.ts')
  add(program, PAUSE, 'pause', async () => (await scheduling()).pause)
  add(program, RESUME, 'resume', async () => (await scheduling()).resume)
  const weights = configure(program.command('weights'))
    .description('Set the weight version')
    .helpCommand(false)
  add(weights, WEIGHTS_SET, 'set <version>', async () => (await scheduling()).setWeights)
  add(program, CHAT, 'chat [message]', async () => (await import('./chat.ts')).run)
  add(program, DOCTOR, 'doctor', async () => (await import('./doctor/run.ts')).run)
  add(program, HEALTH, 'health', async () => (await import('./health.ts')).run)
  add(program, DEMO, 'demo', async () => (await import('./demo/run.ts')).run)
  // What the demo starts: the standalone executable has no other program at hand.
  configure(program.command('demo-agent [question]', { hidden: true }))
    .description('Answer a question (or TASK_PROMPT) with a calculator; OPENAI_BASE_URL names the model')
    .action(async (question?: string) => {
      const { run } = await import('./demo/agent.ts')
      onExit(await run(question))
    })
  return program
}

/** Wrong command lines throw and print nothing: `fail.ts` has the word. */
function configure(command: Command): Command {
  return command
    .helpOption('-h, --help', 'Print this help')
    .exitOverride()
    .allowExcessArguments(false)
    .configureOutput({ outputError: () => {}, getOutHelpWidth: () => helpWidth(process.stdout.columns) })
}

function helpWidth(columns: number | undefined): number {
  return Math.min(columns ?? HELP_WIDTH, HELP_WIDTH)
}

/** @returns the option keys by the names under which commander has their values */
function addOptions(command: Command, spec: CommandSpec): Map<string, string> {
  const keys = new Map<string, string>()
  const hidden: Option[] = []
  for (const [key, entry] of Object.entries(spec.options)) {
    for (const [place, flag] of flagsOf(entry).entries()) {
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

/** The help, then what the placeholder left open, the environment and the default. */
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

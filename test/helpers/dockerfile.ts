/** Parses the Dockerfile: build stages and the resulting image. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import {
  type Arg,
  DockerfileParser,
  type Instruction,
  type ModifiableInstruction,
  type PropertyInstruction,
} from 'dockerfile-ast'

export const ROOT = join(import.meta.dirname, '../..')

interface CopyStep {
  /** The source stage. */
  stage: string
  owner: string
  source: string
  destination: string
}

export interface Dockerfile {
  /** The default base images of the stages, in order. */
  bases: string[]
  /** The build stage's working directory and commands. */
  workdir: string
  runs: string[]
  image: {
    copies: CopyStep[]
    env: Record<string, string>
    labels: Record<string, string>
    user: string
    volume: string
    workdir: string
    port: string
    entrypoint: string[]
    healthcheck: string[]
  }
}

export function readDockerfile(): Dockerfile {
  const file = DockerfileParser.parse(readFileSync(join(ROOT, 'Dockerfile'), 'utf8'))
  const froms = file.getFROMs()
  const lastFrom = froms.at(-1)!.getRange().start.line
  const inImage = (instruction: Instruction) => instruction.getRange().start.line > lastFrom
  const all = (keyword: string) => file.getInstructions().filter((one) => one.getKeyword() === keyword)
  const getText = (keyword: string, where = inImage) => all(keyword).find(where)!.getArgumentsContent()!
  const getProperties = (keyword: string) =>
    Object.fromEntries(
      all(keyword)
        .filter(inImage)
        .flatMap((one) => (one as PropertyInstruction).getProperties())
        .map((property) => [property.getName(), property.getValue() ?? '']),
    )
  return {
    bases: froms.map((from) => withDefaults(from.getImage()!, file.getInitialARGs())),
    workdir: getText('WORKDIR', (instruction) => !inImage(instruction)),
    runs: all('RUN').map((run) => run.getArgumentsContent()!),
    image: {
      copies: all('COPY').filter(inImage).map(parseCopy),
      env: getProperties('ENV'),
      labels: getProperties('LABEL'),
      user: getText('USER'),
      volume: getText('VOLUME'),
      workdir: getText('WORKDIR'),
      port: getText('EXPOSE'),
      entrypoint: JSON.parse(getText('ENTRYPOINT')),
      healthcheck: JSON.parse(getText('HEALTHCHECK').replace(/^CMD /, '')),
    },
  }
}

/** Replaces `${NAME}` in a text by the default of `ARG NAME=...`. */
function withDefaults(text: string, args: readonly Arg[]): string {
  const defaults = args.map((arg) => arg.getProperty()!)
  return text.replace(/\$\{(\w+)\}/g, (_, name) => {
    const value = defaults.find((property) => property.getName() === name)?.getValue()
    if (!value) throw new Error(`no ARG before the first FROM has a default for ${name}`)
    return value
  })
}

function parseCopy(instruction: Instruction): CopyStep {
  const flags = (instruction as ModifiableInstruction).getFlags()
  const flag = (name: string) => flags.find((one) => one.getName() === name)?.getValue() ?? ''
  const [source, destination] = instruction.getArguments().map((argument) => argument.getValue())
  return { stage: flag('from'), owner: flag('chown'), source: source!, destination: destination! }
}

/** Agents and frameworks from PyPI; no cases on a machine without a suitable Python. */
import { join } from 'node:path'
import { type Agent, SHELL_ENV } from '../parts/agent.ts'
import { findPython312, hasPython, installFromPyPI } from '../parts/install.ts'
import { createMiniSweAgent, MINI_SWE_AGENT } from '../parts/known-agents.ts'
import { callTool, DONE, type HistoryCase } from './case.ts'

const PROGRAMS = join(import.meta.dirname, '../programs')

/** Above 2,000 characters, deepagents truncates the arguments of `write_file` in all messages but the last 20. */
export async function createDeepagentsCases(): Promise<HistoryCase[]> {
  if (!(await hasPython())) return []
  const { version, folder } = await installFromPyPI('deepagents', ['langchain-openai==1.7.3'])
  const agent: Agent = {
    name: `deepagents ${version}`,
    dialect: 'chat',
    program: ({ baseUrl, task, home }) => ({
      command: join(folder, 'bin/python'),
      args: [join(PROGRAMS, 'deep-agent.py'), task],
      env: { ...SHELL_ENV, HOME: home, OPENAI_BASE_URL: `${baseUrl}/v1`, OPENAI_API_KEY: 'none' },
    }),
  }
  const steps = [
    callTool('write_file', { file_path: '/a.txt', content: 'some words '.repeat(300) }),
    ...Array.from({ length: 11 }, (_, index) => callTool('look', { place: `room ${index}` })),
    DONE,
  ]
  return [
    { agent, change: 'a file of 3,300 characters, cut later', steps, rows: { token: 2, chat: 2 } },
    {
      ...{ agent, change: 'the same under `--edited-calls keep`', steps },
      flags: ['--edited-calls', 'keep'],
      rows: { token: 1, chat: 2 },
    },
  ]
}

export async function createOpenHandsCases(): Promise<HistoryCase[]> {
  const python = await findPython312()
  if (python === undefined) return []
  const { version, folder } = await installFromPyPI('openhands-sdk', ['openhands-tools==1.58.0'], { python })
  const agent: Agent = {
    name: `OpenHands SDK ${version}`,
    dialect: 'chat',
    program: ({ baseUrl, task, home }) => ({
      command: join(folder, 'bin/python'),
      args: [join(PROGRAMS, 'openhands-agent.py'), task],
      env: {
        ...SHELL_ENV,
        HOME: home,
        OPENAI_BASE_URL: `${baseUrl}/v1`,
        LITELLM_LOCAL_MODEL_COST_MAP: 'True',
      },
    }),
  }
  const path = '$<folder>/a.txt'
  const steps = [
    callTool('file_editor', { command: 'create', path, file_text: 'one\ntwo  \nthree\n' }),
    callTool('file_editor', { command: 'view', path, view_range: '[1, 2]' }),
    callTool('file_editor', { path }),
    callTool('finish', { message: 'Done.' }),
  ]
  return [{ agent, change: 'values as text, a guessed member', steps, rows: { token: 1, chat: 3 } }]
}

export async function createMiniSweAgentCases(): Promise<HistoryCase[]> {
  if (!(await hasPython())) return []
  const agent = createMiniSweAgent(await installFromPyPI(...MINI_SWE_AGENT))
  const bash = (command: string) => callTool('bash', { command })
  const end = 'echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT'
  const steps = [bash('ls  '), bash(' echo 1 > a.txt\n'), bash(end)]
  return [{ agent, change: 'nothing', steps, rows: { token: 1, chat: 1 } }]
}

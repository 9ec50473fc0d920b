/** Options of a worker, which connects to a proxy. */
import { type CommandConfig, type CommandSpec, groupOptions } from '../option.ts'
import {
  engineApiKey,
  engineKind,
  engineSessionHeader,
  logFormat,
  logLevel,
  maxConcurrency,
  shutdownGraceMs,
  tlsCa,
  workerKeys,
} from './shared.ts'

export const WORKER = {
  name: 'worker',
  summary: 'Connect to a relay-mode proxy and serve its requests with engines that this machine reaches',
  options: {
    ...groupOptions('Proxy', {
      proxyUrls: {
        flag: 'proxy-url',
        type: 'dialUrl',
        repeatable: true,
        env: ['PROXY_SERVER_URL'],
        help:
          'Base URL of a proxy in relay mode; may be given several times. dns+http://NAME:PORT stands for one ' +
          'proxy at each address of NAME, looked up again every 5 s',
      },
      workerKeys: {
        ...workerKeys,
        help:
          'Worker key of the proxies. If one of several is rejected, the next is tried; @file reads them from a ' +
          'file, one per line. On the command line, other users of the machine can read it',
      },
      tlsCa,
      workerId: {
        flag: 'worker-id',
        type: 'text',
        help: 'Name of this worker, which should stay the same after a restart; default: host name and process id',
      },
    }),
    ...groupOptions('Engines', {
      engineUrls: {
        flag: 'engine-url',
        type: 'url',
        repeatable: true,
        help: 'Base URL of an engine; may be given several times',
      },
      engineKind,
      engineApiKey,
      engineSessionHeader,
      maxConcurrency: {
        ...maxConcurrency,
        help: 'Maximum number of concurrent requests per engine',
      },
    }),
    shutdownGraceMs,
    logLevel,
    logFormat,
  },
} as const satisfies CommandSpec

export type WorkerConfig = CommandConfig<typeof WORKER>

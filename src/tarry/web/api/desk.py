"""What routes work with: the desk and the service of this process."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from tarry.control.desk import Desk
from tarry.router.service import Service


async def get_desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


async def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheDesk = Annotated[Desk, Depends(get_desk)]
TheService = Annotated[Service, Depends(get_service)]

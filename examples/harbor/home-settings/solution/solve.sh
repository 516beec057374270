#!/bin/bash
mkdir -p ~/.config/paint
echo color=blue >>~/.config/paint/settings
